def run(*, repeats: int, as_json: bool) -> int:
    raise NotImplementedError
