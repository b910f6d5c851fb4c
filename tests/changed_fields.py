"""Every field of a file's data changed in turn: what a damaged or hostile file may hold."""

import copy

ABSENT = object()


def changed_fields(whole, values, part=0, parts=1):
    """Yield (path of a field, value, data with this value there); `ABSENT` takes the field away.

    part, parts: every parts-th field, beginning with this one.
    """
    for *way, last in [*distinct_places(whole)][part::parts]:
        for value in values:
            data = copy.deepcopy(whole)
            inside = data
            for key in way:
                inside = inside[key]
            if value is ABSENT:
                inside.pop(last)
            else:
                inside[last] = value
            yield [*way, last], value, data


def distinct_places(whole):
    """Yield the paths of the fields; of all in lists alike, one."""
    seen = set()
    for *way, last in _places(whole):
        inside = whole
        for key in way:
            inside = inside[key]
        alike = inside if isinstance(inside, dict) else {}
        sort = (alike.get("status"), alike.get("kind"), *("#" if isinstance(key, int) else key for key in (*way, last)))
        if sort not in seen and [*way, last] != ["schema"]:
            seen.add(sort)
            yield [*way, last]


def _places(data, path=()):
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from _places(value, (*path, key))
