"""Who is who: deployments of Airflow, tasks, names and owners of runs, addresses of pages."""
