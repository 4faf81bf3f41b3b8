"""Airflow, as its versions differ from 2.11 on: import it from here where they do."""
