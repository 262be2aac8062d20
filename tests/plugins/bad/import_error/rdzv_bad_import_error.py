from rdzv_plugins import a_name_of_another_version  # noqa: F401
