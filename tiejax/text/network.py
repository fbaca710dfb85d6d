"""Whether a host answers, asked before a library would wait for it for minutes."""

import threading
import urllib.error
import urllib.request

SECONDS_TO_ANSWER = 3.0


def reachable(url: str) -> bool:
    """Return whether the host of `url` answers within 3 s; any answer counts."""
    answered: list[bool] = []

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=SECONDS_TO_ANSWER).close()
        except urllib.error.HTTPError as error:
            error.close()
        except (OSError, ValueError):
            return
        answered.append(True)

    # The look-up of a name knows no time limit, so it is left behind in a thread that does not keep the process alive.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(SECONDS_TO_ANSWER)
    return bool(answered)
