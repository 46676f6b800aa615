"""What a run tells the outside: metrics to files and services, progress on a terminal, FLOPs. A leaf: it uses no other room."""
