"""TensorBoard event files as TensorBoard reads them, by the description of their format."""

import struct

from tensorboardX.crc32c import crc32c
from tensorboardX.proto.event_pb2 import Event, SessionLog


def events(path):
    """Read an event file: length, its checksum, bytes, their checksum; https://www.tensorflow.org/tutorials/load_data/tfrecord.

    A record that a killed process did not finish ends the file.
    """

    def masked(data):
        crc = crc32c(data)
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

    content, found = path.read_bytes(), []
    while len(content) >= 12:
        (length, length_crc), content = struct.unpack("<QI", content[:12]), content[12:]
        if len(content) < length + 4:
            break
        data, (data_crc,), content = content[:length], struct.unpack("<I", content[length : length + 4]), content[length + 4 :]
        assert (masked(struct.pack("<Q", length)), masked(data)) == (length_crc, data_crc)
        found.append(Event.FromString(data))
    return found


def points(folder):
    """Return series -> [(step, value)] as TensorBoard shows a folder: file after file, each start purging what it rewrites."""
    shown = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in events(path):
            if event.session_log.status == SessionLog.START:
                shown = {tag: [point for point in of_tag if point[0] < event.step] for tag, of_tag in shown.items()}
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    shown.setdefault(value.tag, []).append((event.step, value.simple_value))
    return {tag: of_tag for tag, of_tag in shown.items() if of_tag}


def texts(folder):
    """Return the last text of each name in a folder."""
    return {
        value.tag.removesuffix("/text_summary"): value.tensor.string_val[0].decode()
        for path in sorted(folder.glob("events.out.tfevents.*"))
        for event in events(path)
        for value in event.summary.value
        if value.tensor.string_val
    }
