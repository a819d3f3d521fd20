"""What a job is and how it may change. Pure: no clock, no MongoDB, no trio."""
