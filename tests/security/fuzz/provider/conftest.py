"""How Airflow's side is fuzzed."""
