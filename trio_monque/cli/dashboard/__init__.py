"""`trio-monque dashboard`: the dashboard in a browser on this machine."""
