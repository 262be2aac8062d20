import rdzv_absent_client  # noqa: F401
