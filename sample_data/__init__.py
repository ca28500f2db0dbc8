"""Sample data: recorded captures, and the simulated cluster that makes more. It speaks through ordinary plug-ins."""
