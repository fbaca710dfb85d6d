"""Data, as plain numpy and as batches drawn on the device.

exor            strings, split, distributions; `exor_batches` and `exor_multisets` draw their spellings and masks
corpus          where text comes from, and its sentences; `tokenizer` and `prepared` make pieces of them, once
twins           planted twins; `text_rows` packs sentences, `text_batches` draws twins and masks
streams         the text as it is, as streams of pieces; `blocks` cuts and draws them; `stored` keeps what was prepared
"""
