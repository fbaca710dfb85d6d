"""A quick check that a host answers, so that no library waits minutes for it."""

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

    # Resolving a name has no time limit, so it runs in a daemon thread, which does not keep the process alive.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(SECONDS_TO_ANSWER)
    return bool(answered)
