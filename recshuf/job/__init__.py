"""Options, job, plan and report: frozen data and pure planning."""
