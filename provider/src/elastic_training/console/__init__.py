"""Console of runs outside of DAGs: the page in Airflow's UI, and the command."""
