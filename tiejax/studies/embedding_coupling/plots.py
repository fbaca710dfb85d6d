"""stub"""


def plot_all(body, left):
    return []
