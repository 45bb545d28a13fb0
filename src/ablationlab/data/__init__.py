"""Text, from its source to batches of tokens. No torch.

`sources` and `formats` download named texts; `documents` reads them and files of your own; `tokenizers`, `prepare` and
`prepared` turn them into tokens on disk; `duplicates` and `overlap` find text that occurs twice; `corpus` splits it into
training and held-out text; `tokens` and `batches` draw from it.
"""
