"""The form of a connection: one description of its fields for all versions of Airflow.

From 3.2 on, Airflow takes them from the provider's info as JSON schema (``conn-fields``, ``ui-field-behaviour``);
before, from the hook's class as WTForms fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from elastic_training.clusters.location import DEFAULT_KUBERNETES, KUBERNETES, PLACES


@dataclass(frozen=True, slots=True)
class FormField:
    """One field, kept in the connection's extras."""

    name: str
    label: str
    description: str
    placeholder: str
    choices: tuple[str, ...] = ()


FIELDS = (
    FormField(
        "place",
        "Place",
        "Where trainings run: kubernetes (the default), local, slurm, spark or ray.",
        KUBERNETES,
        PLACES,
    ),
    FormField(
        "kubernetes_conn_id",
        "Kubernetes connection",
        "Id of the connection of type kubernetes that leads to the cluster.",
        DEFAULT_KUBERNETES,
    ),
    FormField("namespace", "Namespace", "Of the trainings; empty: that connection's.", "training"),
    FormField("image", "Image", "Of launcher and workers, where a task names none.", "registry/trainer:1"),
    FormField(
        "launcher_image",
        "Launcher's image",
        "Of launchers alone, which can change objects of the namespace; empty: that of the workers.",
        "registry/trainer:1",
    ),
    FormField("checkpoint_uri", "Checkpoints", "Prefix of checkpoints, where a task says nothing.", "s3://bucket/runs"),
    FormField(
        "checkpoint_conn_id",
        "Checkpoints connection",
        "Id of the connection with credentials for them (aws, google_cloud_platform, wasb); empty: the pods' own.",
        "aws_default",
    ),
    FormField(
        "folder",
        "Folder (Slurm, Spark, Ray)",
        "Of the runs, on a file system that Airflow and all nodes see; its user's alone.",
        "/shared/elastic",
    ),
    FormField("master", "Master (Spark)", "URL of the cluster's master.", "spark://master:7077"),
    FormField(
        "ssh_conn_id",
        "Connection (Slurm)",
        "Id of a connection of type ssh over which Slurm's commands are called, or of type http to slurmrestd; empty: "
        "the commands are here.",
        "login_node",
    ),
    FormField(
        "address",
        "Address (Ray)",
        "HOST:PORT of Ray's dashboard, with its API of jobs; https://HOST:PORT is possible, too.",
        "ray-head:8265",
    ),
    FormField(
        "python",
        "Python (Slurm, Spark, Ray)",
        "Interpreter with elastic-runtime on the nodes, and with ray in Ray, where a task names none.",
        "/shared/venv/bin/python",
    ),
    FormField(
        "pyspark",
        "Python with pyspark (Spark)",
        "Interpreter with pyspark in the cluster's version, here and on the nodes; empty: the one above.",
        "/shared/spark/bin/python",
    ),
)
HIDDEN = ("host", "schema", "login", "password", "port", "extra")
"""Airflow's own, which say nothing here."""


def placeholders() -> dict[str, str]:
    """Return the placeholders of empty fields."""
    return {field.name: field.placeholder for field in FIELDS}


def conn_fields() -> dict[str, Any]:
    """Return the form's fields as ``conn-fields`` of ``get_provider_info``, which Airflow's UI reads."""
    return {
        field.name: {
            "label": field.label,
            "description": field.description,
            "schema": _one_of(field.choices) if field.choices else {"type": ["string", "null"]},
        }
        for field in FIELDS
    }


def _one_of(choices: tuple[str, ...]) -> dict[str, Any]:
    # Airflow's form shows "null" for a choice that may be none.
    return {"type": "string", "enum": list(choices), "default": choices[0]}


def form_fields() -> dict[str, Any]:
    """For the hook's class; WTForms and Flask AppBuilder come with Airflow 2."""
    from flask_appbuilder.fieldwidgets import BS3TextFieldWidget
    from flask_babel import lazy_gettext
    from wtforms import StringField
    from wtforms.validators import Optional

    return {
        field.name: StringField(
            lazy_gettext(field.label),
            validators=[Optional()],
            description=field.description,
            widget=BS3TextFieldWidget(),
        )
        for field in FIELDS
    }
