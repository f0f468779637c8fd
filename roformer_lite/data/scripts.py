"""The characters of scripts that are written without spaces."""

import re

KANA = re.compile(r"[\u3040-\u30ff]")
HAN = re.compile(r"[\u3400-\u9fff\U00020000-\U0003ffff]")
# Thai, Lao, Burmese and Khmer.
OTHERS_WITHOUT_SPACES = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")
