from millrace.api.own_loops.log_subject import identity

FACTOR = 2


def helper(x):
    return FACTOR * x


def calls_helper(x):
    return (lambda y: helper(y))(x)


def made(part, default=1):
    def body(x, scale=default):
        return part, x, scale

    return body


def same(a, b):
    return identity(a)[0] == identity(b)[0]


def test_functions_made_anew_are_the_same():
    part = object()
    assert same(made(part), made(part))
    assert same(made(3), made(3))


def test_functions_that_refer_to_others_are_others():
    assert not same(made(object()), made(object()))
    assert not same(made(3), made(4))
    assert not same(made(1), made(1.0))
    assert not same(made(1), made(True))
    assert not same(made(3), made(3, default=2))
    assert not same(lambda x: x, lambda x: x + 1)


def test_globals_are_followed_through_functions_of_the_module(monkeypatch):
    before, alive = identity(calls_helper)
    assert identity(calls_helper)[0] == before
    monkeypatch.setitem(globals(), "FACTOR", 3)
    assert identity(calls_helper)[0] != before
    assert helper in alive


def test_methods_belong_to_their_object():
    class Thing:
        def method(self):
            pass

    first, second = Thing(), Thing()
    assert same(first.method, first.method)
    assert not same(first.method, second.method)


def test_functions_that_refer_to_themselves():
    def outer():
        def inner(n):
            return inner(n - 1) if n else outer

        return inner

    assert same(outer, outer)
    inner = outer()
    assert same(inner, inner)


def test_what_is_no_function_is_itself():
    assert same(len, len)
    assert not same(len, max)
    assert not same(object(), object)
