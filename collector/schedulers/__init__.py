"""Schedulers' own words on demand: Kubernetes with Kueue, KAI and Volcano, and Slurm, each listed, never changed."""
