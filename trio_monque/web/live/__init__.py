"""What goes on beside answers: viewers who see changes at once, bulk actions that outlive their request, metrics."""
