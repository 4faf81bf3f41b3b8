"""The command ``elastic-training``: runs at a terminal, in every place; without Airflow's server."""
