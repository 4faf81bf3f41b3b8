"""The launcher beside the driver of a Spark application, with tasks as workers."""
