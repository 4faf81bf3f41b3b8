"""What people see of runs and do to them outside of DAGs: the page in Airflow's UI."""
