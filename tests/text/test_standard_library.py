"""The prose in documentation of CPython."""

import textwrap

from tiejax.text.standard_library import prose


def test_prose_in_documentation():
    documentation = """\
        urlopen(url, data=None) -> response

        Open the URL *url*, which can be
        either a string or a :class:`Request` object.

        The ``data`` must be an object. For example::

            response = urlopen("http://example.org", data={"a": 1})
            print(response.read())

        >>> Some words that look like a sentence are code.

        ======  =========
        Method  Meaning
        ======  =========

        Arguments
        ---------

        * The first one is a bullet.
        * The second one is another
          over two lines.

        1. A number may begin a sentence, too.
        lower-case words without an end
        """
    assert prose(textwrap.dedent(documentation)) == [
        "Open the URL url, which can be either a string or a Request object.",
        "The first one is a bullet.",
        "The second one is another over two lines.",
    ]
