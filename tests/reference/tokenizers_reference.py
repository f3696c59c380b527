#!/usr/bin/env python3
"""Tokenizers against Hugging Face's `tokenizers` and OpenAI's `tiktoken`.

  tokenizers_reference.py make DIR [--mb 100] [--shared ../shared/data]
      writes DIR/documents.bin (mixed text, the same each time) and DIR/*.json (tokenizers)
  tokenizers_reference.py compare DIR --mtl build/bench/tokenize [--shared ...]
      encodes the documents with mtl and with the libraries, and counts differences
  tokenizers_reference.py golden DIR -o tests/reference/tokenizers.json
      a few hundred short texts with their ids, for the C++ suite
  tokenizers_reference.py ages
      which characters are marks, punctuation, numbers and parts of words there: as hashes

Needs: pip install tokenizers==0.19.1 tiktoken numpy. Special tokens in the text are text
(encode_special_tokens, encode_ordinary), and broken UTF-8 is what
bytes.decode("utf-8", errors="replace") makes of it.
"""
import argparse
import base64
import glob
import json
import os
import random
import struct
import subprocess
import sys
import unicodedata

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])

# Blocks of letters of many scripts; words are made of a few characters of one block.
SCRIPTS = [(0x61, 0x7B), (0xC0, 0x17F), (0x370, 0x400), (0x400, 0x460), (0x531, 0x588),
           (0x5D0, 0x5EB), (0x620, 0x64B), (0x900, 0x97F), (0x980, 0x9FF), (0xB80, 0xBFF),
           (0xE01, 0xE5B), (0xF40, 0xFBC), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137C),
           (0x13A0, 0x13F5), (0x1780, 0x17F0), (0x1820, 0x1878), (0x1E00, 0x1F00),
           (0x3041, 0x3097), (0x30A1, 0x30FB), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3),
           (0x10330, 0x1034B), (0x1D400, 0x1D7FF), (0x20000, 0x20100)]
SYMBOLS = [(0x21, 0x30), (0x3A, 0x41), (0xA1, 0xC0), (0x2010, 0x2060), (0x20A0, 0x20C0),
           (0x2190, 0x2300), (0x2500, 0x2600), (0x2600, 0x27C0), (0x3000, 0x3020),
           (0x1F300, 0x1F650), (0x1F680, 0x1F700), (0x1F900, 0x1FA00), (0x300, 0x370)]
NUMBERS = [(0x30, 0x3A), (0xB2, 0xB4), (0x660, 0x66A), (0x966, 0x970), (0x2160, 0x2180),
           (0xFF10, 0xFF1A), (0x1D7CE, 0x1D800), (0x2460, 0x2480)]
SPACES = ["\t", "\n", "\r", "\r\n", " ", "  ", "    ", "\n\n", "\n\n\n", "\u00a0", "\u2003",
          "\u3000", "\u2028", "\u0085", "\u180e", "\u200b", "\x0b", "\x0c", "\u1680", "\u202f"]
CODE = ["for (int i = 0; i < n; ++i) {\n    sum += a[i];\n}\n", "def f(x):\n\treturn x**2\n",
        "#include <vector>\n", "<div class=\"row\">\n  <p>Hi</p>\n</div>\n", "SELECT * FROM t;\n",
        "{\"key\": [1, 2.5e-3, null, \"v\\n\"]}\n", "x = 0x7fff_ffff & ~mask\n", "// TODO(me): ...\n"]
CONTRACTIONS = ["I'm", "you're", "WE'VE", "it's", "IT'S", "don't", "he'll", "she'd", "'Tis",
                "rock'n'roll", "'\u017f", "a'\u017fb", "'LL", "'Ve", "'re're", "''s"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|eot_id|>", "[MASK]", "<mask>", "<extra>"]
BROKEN = [b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\x80", b"\xc0\xaf",
          b"\xf4\x90\x80\x80", b"\xe0\x80\xaf", b"\xf8\x88\x80\x80\x80", b"\xfe\xff"]


def assigned(c):
    """Characters that Python 3.11, PCRE2 10.42 and the Oniguruma of `tokenizers` know (Unicode 14).
    Where other tables of `tokenizers` are older or younger, mtl knows (see `ages`)."""
    return unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")


def alphabet(ranges):
    return [[chr(c) for c in range(a, b) if assigned(c)] for a, b in ranges]


class Text:
    def __init__(self, seed, shared):
        self.random = random.Random(seed)
        self.scripts, self.symbols = alphabet(SCRIPTS), alphabet(SYMBOLS)
        self.numbers = alphabet(NUMBERS)
        with open(os.path.join(shared, "tinyshakespeare.txt"), encoding="utf-8") as f:
            self.prose = f.read()
        # A vocabulary of words per script, so that words come again as they do in real text.
        self.words = [["".join(self.random.choices(s, k=self.random.randint(1, 9)))
                       for _ in range(400)] for s in self.scripts]

    def piece(self):
        r = self.random
        kind = r.random()
        if kind < 0.30:
            at = r.randrange(len(self.prose))
            return self.prose[at:at + r.randint(20, 600)]
        if kind < 0.62:
            words = r.choice(self.words)
            joint = r.choice([" ", " ", " ", "", ", ", "\n", "-"])
            picked = [r.choice(words) for _ in range(r.randint(1, 40))]
            if r.random() < 0.3:
                picked = [w.capitalize() for w in picked]
            return joint.join(picked)
        if kind < 0.70:
            return "".join(r.choices(r.choice(self.symbols), k=r.randint(1, 6)))
        if kind < 0.76:
            return "".join(r.choices(r.choice(self.numbers), k=r.randint(1, 12)))
        if kind < 0.86:
            return "".join(r.choices(SPACES, k=r.randint(1, 5)))
        if kind < 0.93:
            return r.choice(CODE)
        if kind < 0.96:
            return r.choice(CONTRACTIONS)
        if kind < 0.98:
            return "".join(r.choice(r.choice(self.scripts + self.symbols + self.numbers))
                           for _ in range(r.randint(1, 30)))
        if kind < 0.99:
            return r.choice(SPECIAL)
        if kind < 0.995:
            return r.choice(["a", " ", "\n", "ab", "1", "!", "\u4e2d"]) * r.randint(10, 300)
        while True:
            c = r.randrange(0x110000)
            if assigned(c):
                return chr(c)

    def document(self, size):
        r, parts, length = self.random, [], 0
        while length < size:
            part = self.piece().encode("utf-8")
            parts.append(part)
            length += len(part)
            if r.random() < 0.5:
                parts.append(b" ")
            if r.random() < 0.004:
                parts.append(r.choice(BROKEN))
        data = b"".join(parts)
        # Cut anywhere: another way to break a character.
        return data[:size] if r.random() < 0.2 else data


def read_documents(directory):
    with open(os.path.join(directory, "documents.bin"), "rb") as f:
        data = f.read()
    documents, at = [], 0
    while at < len(data):
        (n,) = struct.unpack_from("<I", data, at)
        documents.append(data[at + 4:at + 4 + n])
        at += 4 + n
    return documents


def tokenizers_to_make():
    from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers

    def split(pattern, **k):
        return pre_tokenizers.Split(Regex(pattern), **{"behavior": "isolated", **k})

    def byte_level(*splits, regex=False, prefix=False):
        last = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)
        return pre_tokenizers.Sequence([*splits, last]) if splits else last

    special = [AddedToken("<|endoftext|>", special=True), AddedToken("<|im_start|>", special=True)]
    plain = [AddedToken("[MASK]", lstrip=True, rstrip=True), AddedToken("<mask>", single_word=True),
             AddedToken("<extra>", normalized=False, lstrip=True)]
    bl = decoders.ByteLevel()
    llama2 = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(),
                                decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return {
        "gpt2": dict(pre=byte_level(regex=True), decoder=bl, special=special),
        "gpt2_prefix": dict(pre=byte_level(regex=True, prefix=True), decoder=bl, special=special,
                            plain=plain),
        "llama3": dict(pre=byte_level(split(LLAMA3)), decoder=bl, special=special,
                       ignore_merges=True),
        "qwen2": dict(pre=byte_level(split(QWEN2)), decoder=bl, special=special, plain=plain,
                      normalizer=normalizers.NFC()),
        "o200k": dict(pre=byte_level(split(O200K)), decoder=bl, special=special),
        "digits": dict(pre=byte_level(pre_tokenizers.Digits(individual_digits=True),
                                      pre_tokenizers.Punctuation("contiguous"), regex=True),
                       decoder=bl, plain=plain,
                       normalizer=normalizers.Sequence([normalizers.NFKD(),
                                                        normalizers.StripAccents(),
                                                        normalizers.Lowercase()])),
        "splits": dict(pre=byte_level(
            split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
            split(r"[\r\n]", behavior="merged_with_previous"),
            pre_tokenizers.Split(" ", "merged_with_next"),
            split(r"\s+|\w+", behavior="removed", invert=True)), decoder=bl),
        "metaspace": dict(pre=pre_tokenizers.Metaspace(prepend_scheme="first"), byte_fallback=True,
                          decoder=llama2, special=special, unk="<unk>",
                          normalizer=normalizers.NFKC()),
        "words": dict(pre=pre_tokenizers.Sequence([pre_tokenizers.Whitespace()]), unk="<unk>",
                      fuse_unk=True, suffix="</w>", decoder=decoders.BPEDecoder("</w>"),
                      normalizer=normalizers.Sequence([normalizers.Strip(),
                                                       normalizers.Replace(Regex(r"\d"), "0"),
                                                       normalizers.NFD()])),
    }


def train_tokenizers(directory, texts, byte_vocab, other_vocab):
    import tokenizers
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    for name, how in tokenizers_to_make().items():
        byte = isinstance(how["decoder"], tokenizers.decoders.ByteLevel)
        options = {"unk_token": how.get("unk"), "fuse_unk": how.get("fuse_unk"),
                   "byte_fallback": how.get("byte_fallback"),
                   "end_of_word_suffix": how.get("suffix")}
        model = models.BPE(**{k: v for k, v in options.items() if v is not None})
        tokenizer = Tokenizer(model)
        tokenizer.pre_tokenizer, tokenizer.decoder = how["pre"], how["decoder"]
        if "normalizer" in how:
            tokenizer.normalizer = how["normalizer"]
        unknown = [how["unk"]] if "unk" in how else []
        if how.get("byte_fallback"):
            unknown += ["<0x%02X>" % b for b in range(256)]
        options = {"limit_alphabet": None if byte else other_vocab // 3, "end_of_word_suffix": how.get("suffix"),
                   "initial_alphabet": pre_tokenizers.ByteLevel.alphabet() if byte else None}
        trainer = trainers.BpeTrainer(
            vocab_size=other_vocab if "unk" in how else byte_vocab, show_progress=False,
            special_tokens=unknown, **{k: v for k, v in options.items() if v is not None})
        tokenizer.train_from_iterator(texts, trainer)
        tokenizer.add_special_tokens(how.get("special", []))
        tokenizer.add_tokens(how.get("plain", []))
        data = json.loads(tokenizer.to_str())
        # What the trainer was told is special is only a token of the vocabulary.
        data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] not in unknown]
        data["model"]["ignore_merges"] = how.get("ignore_merges", False)
        with open(os.path.join(directory, name + ".json"), "w", encoding="utf-8") as f:
            json.dump(data, f, ensure_ascii=False)


def make(args):
    os.makedirs(args.dir, exist_ok=True)
    text = Text(20261121, args.shared)
    total, train = 0, []
    with open(os.path.join(args.dir, "documents.bin"), "wb") as f:
        while total < args.mb * 1_000_000:
            document = text.document(text.random.choice([10, 100, 300, 1000, 3000] * 20 + [200000]))
            f.write(struct.pack("<I", len(document)) + document)
            if total < 2_000_000:
                train.append(document.decode("utf-8", errors="replace"))
            total += len(document)
    train_tokenizers(args.dir, train, 3000, 1000)


def load(path):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(path)
    tokenizer.encode_special_tokens = True
    return tokenizer


def gpt2_tiktoken(shared):
    """GPT-2's files as a tiktoken encoding: what tiktoken's own data file holds."""
    import tiktoken
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks
    ranks = data_gym_to_mergeable_bpe_ranks(os.path.join(shared, "gpt2-merges.txt"),
                                            os.path.join(shared, "gpt2-vocab.json"))
    return tiktoken.Encoding("gpt2", pat_str=GPT2, mergeable_ranks=ranks,
                             special_tokens={"<|endoftext|>": 50256})


def ours(args, tokenizer, out):
    line = subprocess.run([args.mtl, tokenizer, os.path.join(args.dir, "documents.bin"), out, "1"],
                          check=True, capture_output=True, text=True).stdout.strip()
    import numpy as np
    with open(out, "rb") as f:
        data = np.frombuffer(f.read(), dtype=np.int32)
    os.remove(out)
    ids, at = [], 0
    while at < len(data):
        n = int(data[at])
        ids.append(data[at + 1:at + 1 + n])
        at += n + 1
    return ids, line


def compare(args):
    import numpy as np
    documents = read_documents(args.dir)
    texts = [d.decode("utf-8", errors="replace") for d in documents]
    broken = sum(t.encode("utf-8") != d for t, d in zip(texts, documents))
    print(f"{len(texts)} documents, {sum(map(len, documents))} bytes, {broken} of them broken")
    failed = False

    def report(name, mine, theirs, line):
        nonlocal failed
        wrong = tokens = count = 0
        for i, t in enumerate(theirs):  # (a generator: the ids of all texts would be gigabytes)
            tokens += len(t)
            count += 1
            if len(t) != len(mine[i]) or not np.array_equal(t, mine[i]):
                wrong += 1
                if wrong <= 3:
                    at = next((j for j in range(min(len(t), len(mine[i]))) if t[j] != mine[i][j]),
                              min(len(t), len(mine[i])))
                    print(f"  document {i}, token {at}: theirs {t[at-2:at+6]}, "
                          f"mine {mine[i][at-2:at+6].tolist()}")
        failed |= wrong > 0 or len(mine) != count
        print(f"{name}: {wrong} documents differ, {tokens} tokens; mtl {line}", flush=True)

    if not args.only or "tiktoken" in args.only:
        encoding = gpt2_tiktoken(args.shared)
        files = [os.path.join(args.shared, f) for f in ("gpt2-vocab.json", "gpt2-merges.txt")]
        mine, line = ours(args, "+".join(files), os.path.join(args.dir, "ids.bin"))
        report("tiktoken gpt2", mine, (encoding.encode_ordinary(t) for t in texts), line)
    for path in sorted(glob.glob(os.path.join(args.dir, "*.json"))):
        name = os.path.splitext(os.path.basename(path))[0]
        if args.only and name not in args.only:
            continue
        tokenizer = load(path)
        mine, line = ours(args, path, os.path.join(args.dir, "ids.bin"))
        theirs = (e.ids for i in range(0, len(texts), 500)
                  for e in tokenizer.encode_batch(texts[i:i + 500], add_special_tokens=False))
        report("tokenizers " + name, mine, theirs, line)
    sys.exit(1 if failed else 0)


def fnv1a64(data):
    h = 0xcbf29ce484222325
    for b in data:
        h = (h ^ b) * 0x100000001b3 % 2**64
    return "%016x" % h


def golden(args):
    """Small tokenizers, texts, and of each pair the number of ids, and the hashes of the ids (i32,
    little-endian) and of the decoded text; the trainer's merges for a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    os.makedirs(args.dir, exist_ok=True)
    text = Text(7, args.shared)
    documents = [text.document(n) for n in [60] * 40 + [200] * 20 + [800] * 5]
    documents += [s.encode() for s in SPACES + CONTRACTIONS + SPECIAL] + BROKEN
    documents += [b"", b" ", b"a", b"a" * 300, " [MASK]  <mask>a <mask>, <extra>\n".encode()]
    strings = [d.decode("utf-8", errors="replace") for d in documents]
    for old in glob.glob(os.path.join(args.dir, "*.json")):
        os.remove(old)
    train_tokenizers(args.dir, strings, 330, 330)
    out = {"texts": [base64.b64encode(d).decode() for d in documents], "tokenizers": {}}

    def expected(encode, decode):
        rows = []
        for s in strings:
            ids = encode(s)
            rows.append([len(ids), fnv1a64(struct.pack("<%di" % len(ids), *ids)),
                         fnv1a64(decode(ids).encode())])
        return rows

    for path in sorted(glob.glob(os.path.join(args.dir, "*.json"))):
        tokenizer = load(path)
        rows = expected(lambda s: tokenizer.encode(s, add_special_tokens=False).ids,
                        lambda ids: tokenizer.decode(ids, skip_special_tokens=False))
        tokenizer.encode_special_tokens = False
        special = [tokenizer.encode(s, add_special_tokens=False).ids for s in strings[-5:]]
        with open(path, encoding="utf-8") as f:
            out["tokenizers"][os.path.splitext(os.path.basename(path))[0]] = {
                "file": json.load(f), "expected": rows, "with_special_last": special}
    tiktoken = gpt2_tiktoken(args.shared)
    out["gpt2"] = expected(tiktoken.encode_ordinary, tiktoken.decode)
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.train_from_iterator([text.prose[:20000]], trainers.BpeTrainer(
        vocab_size=500, min_frequency=2, show_progress=False, special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    out["trained"] = {"text_bytes": 20000, "merges": json.loads(trained.to_str())["model"]["merges"]}
    with open(args.o, "w", encoding="utf-8") as f:
        json.dump(out, f, ensure_ascii=True, separators=(",", ":"))
        f.write("\n")
    print(os.path.getsize(args.o), "bytes")


def ages(args):
    """How many characters belong to what `tokenizers` itself decides, and a hash of them."""
    from tokenizers import normalizers, pre_tokenizers
    marks, words = normalizers.StripAccents(), pre_tokenizers.Whitespace()
    punctuation, digits = pre_tokenizers.Punctuation("isolated"), pre_tokenizers.Digits(True)
    normal = [getattr(normalizers, form)() for form in ("NFC", "NFD", "NFKC", "NFKD")]
    pieces = lambda cutter, c: len(cutter.pre_tokenize_str("a" + c + "a"))
    for name, belongs in (
            ("marks", lambda c: marks.normalize_str(c) == ""),
            ("punctuation", lambda c: pieces(punctuation, c) == 3),
            ("numbers", lambda c: pieces(digits, c) == 3),
            ("words", lambda c: pieces(words, c) == 1),
            ("changed by NFC, NFD, NFKC or NFKD",
             lambda c: any(form.normalize_str(c) != c for form in normal))):
        all = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000 and belongs(chr(c))]
        print(name, len(all), fnv1a64(",".join("%x" % c for c in all).encode()))


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["make", "compare", "golden", "ages"])
    p.add_argument("dir", nargs="?")
    p.add_argument("--mb", type=float, default=100)
    p.add_argument("--shared", default="../shared/data")
    p.add_argument("--mtl", default="build/bench/tokenize")
    p.add_argument("--only", nargs="*")
    p.add_argument("-o", default="tests/reference/tokenizers.json")
    args = p.parse_args()
    {"make": make, "compare": compare, "golden": golden, "ages": ages}[args.what](args)


if __name__ == "__main__":
    main()
