// samba prepare: documents, token shards, the same bytes for any number of threads and after any stop, what is refused.
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <set>

#include "command.h"
#include "error_of.h"
#include "samba/convert/initial_model.h"
#include "samba/formats/byte_source.h"
#include "samba/formats/token_shards.h"
#include "samba/text/bpe_trainer.h"
#include "samba/text/tokenizer.h"
#include "samba/train/documents.h"
#include "samba/train/prepare.h"

namespace samba {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

std::string sentences(int first, int count) {
  std::string text;
  for (int i = first; i < first + count; ++i) {
    text +=
        "line " + std::to_string((i % 977) * (i % 977) % 977) + " of the text says " + std::to_string(i) + " things\n";
  }
  return text;
}

std::string gzip(const std::string& text) {
  z_stream stream{};
  REQUIRE(::deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string packed(::deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  REQUIRE(::deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  ::deflateEnd(&stream);
  return packed;
}

std::string zstd(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
  return packed;
}

std::string content(const Path& path) {
  const auto source = open_byte_source(path);
  std::string text(3000000, '\0');
  text.resize(source->read(text.data(), text.size()));
  return text;
}

TEST_CASE("packed files are read as their content, several members and frames one behind the other") {
  const TemporaryFolder folder;
  const std::string text = sentences(0, 9000);
  write_text(folder / "a.gz", gzip(text) + gzip("and more"));
  write_text(folder / "a.zst", zstd(text) + zstd("and more"));
  write_text(folder / "empty.gz", "");
  CHECK(content(folder / "a.gz") == text + "and more");
  CHECK(content(folder / "a.zst") == text + "and more");
  CHECK(content(folder / "empty.gz").empty());
  for (const char* name : {"a.gz", "a.zst"}) {
    const std::string packed = read_file(folder / name);
    const Path damaged = folder / (std::string("damaged-") + name);
    write_text(damaged, packed.substr(0, packed.size() / 2));
    const Error cut = error_of([&] { content(damaged); });
    CHECK(cut.kind() == ErrorKind::corrupt);
    CHECK_THAT(cut.what(), Contains(damaged.string()) && Contains("is cut off"));
    std::string flipped = packed;
    flipped[0] = static_cast<char>(flipped[0] ^ 0x40);
    write_text(damaged, flipped);
    CHECK_THAT(error_of([&] { content(damaged); }).what(), Contains("is damaged"));
  }
}

// ---- documents ----

struct Read {
  std::string text;
  bool counts = true;
};

// The documents of some files as their pieces, joined.
std::vector<std::vector<Read>> documents(const std::vector<Path>& files, DocumentOptions options,
                                         DocumentPlace from = {}) {
  DocumentReader reader(files, options, from, [](const Sha256Digest&) { return true; });
  std::vector<std::vector<Read>> found(1);
  while (const auto piece = reader.next()) {
    if (found.back().empty() || found.back().back().counts != piece->counts)
      found.back().push_back({"", piece->counts});
    found.back().back().text += piece->text;
    if (piece->last) found.emplace_back();
  }
  REQUIRE(found.back().empty());
  found.pop_back();
  return found;
}

std::vector<std::string> texts(const std::vector<std::vector<Read>>& documents) {
  std::vector<std::string> all;
  for (const auto& document : documents) all.push_back(document.at(0).text);
  return all;
}

TEST_CASE("a text file is one document, or one a line or a paragraph; empty ones are none") {
  const TemporaryFolder folder;
  write_text(folder / "a.txt", "one\ntwo\r\n\n \nthree\n\n\nfour");
  write_text(folder / "b.txt", "");
  const std::vector<Path> files{folder / "a.txt", folder / "b.txt"};
  CHECK(texts(documents(files, {})) == std::vector<std::string>{"one\ntwo\r\n\n \nthree\n\n\nfour"});
  CHECK(texts(documents(files, {.unit = DocumentUnit::line})) ==
        std::vector<std::string>{"one", "two", " ", "three", "four"});
  CHECK(texts(documents(files, {.unit = DocumentUnit::paragraph})) ==
        std::vector<std::string>{"one\ntwo", "three", "four"});
}

TEST_CASE("JSON lines are documents by their field, or a prompt and its completion") {
  const TemporaryFolder folder;
  write_text(folder / "a.jsonl", R"({"text": "plain \u00e4", "id": 3})"
                                 "\n\n"
                                 R"({"prompt": "2+2=", "completion": "4"})");
  const auto read = documents({folder / "a.jsonl"}, {});
  REQUIRE(read.size() == 2);
  CHECK(read[0].at(0).text == "plain \xC3\xA4");
  REQUIRE(read[1].size() == 2);
  CHECK(read[1][0].text == "2+2=");
  CHECK_FALSE(read[1][0].counts);
  CHECK(read[1][1].text == "4");
  CHECK(read[1][1].counts);
  const auto message = [&](const std::string& line) {
    write_text(folder / "bad.ndjson", "{\"text\": \"fine\"}\n" + line + "\n");
    const Error error = error_of([&] { documents({folder / "bad.ndjson"}, {}); });
    CHECK(error.kind() == ErrorKind::value);
    CHECK_THAT(error.what(), Contains("bad.ndjson: line 2"));
    return std::string(error.what());
  };
  CHECK_THAT(message("{\"text\": "), Contains("is not JSON"));
  CHECK_THAT(message("[1]"), Contains("must be a JSON object, got [1]"));
  CHECK_THAT(message("{\"body\": \"x\"}"), Contains("must have the field \"text\", or \"prompt\" and \"completion\""));
  CHECK_THAT(message("{\"prompt\": \"x\"}"), Contains("must have the field"));
  CHECK_THAT(message("{\"text\": \"a\", \"prompt\": \"x\", \"completion\": \"y\"}"), Contains("not all of them"));
  CHECK_THAT(message("{\"text\": 7}"), Contains("the field \"text\" must be a text, got 7"));
  CHECK_THAT(message("{\"prompt\": \"x\", \"completion\": \"\"}"), Contains("\"completion\" is empty"));
}

TEST_CASE("a long document comes in pieces cut behind line breaks, and a reading goes on behind any of them") {
  const TemporaryFolder folder;
  std::string text = sentences(0, 60000);                  // 2.3 MB
  text += std::string(1500000, 'x') + "\xC3\xA4" + "end";  // no line break for more than a piece
  write_text(folder / "long.txt.gz", gzip(text));
  const std::vector<Path> files{folder / "long.txt.gz"};
  CHECK(texts(documents(files, {})) == std::vector<std::string>{text});
  DocumentReader reader(files, {}, {}, [](const Sha256Digest&) { return true; });
  std::vector<std::pair<std::string, DocumentPlace>> pieces;
  while (const auto piece = reader.next()) pieces.emplace_back(piece->text, piece->behind.value());
  REQUIRE(pieces.size() > 3);
  CHECK(pieces[0].first.back() == '\n');
  std::string rest = text;
  for (const auto& [piece, behind] : pieces) {
    CHECK(piece.size() <= DocumentReader::kPieceBytes);
    rest.erase(0, piece.size());
    DocumentReader again(files, {}, behind, [](const Sha256Digest&) { return true; });
    std::string follows;
    while (const auto next = again.next()) follows += next->text;
    REQUIRE(follows == rest);
  }
}

// ---- shards ----

// A folder with texts of all kinds and a tokenizer.
class Corpus {
 public:
  Corpus() {
    fs::create_directories(folder_ / "in/deep");
    write_text(folder_ / "in/a.txt", sentences(0, 700));
    write_text(folder_ / "in/b.txt.zst", zstd(sentences(100, 300)));
    write_text(folder_ / "in/deep/again.txt", sentences(0, 700));  // a duplicate of a.txt
    std::string lines;
    for (int i = 0; i < 400; ++i) {
      lines +=
          json({{"text", "entry " + std::to_string(i % 350) + " is about " + sentences(i % 350, 2)}}).dump() + "\n";
      if (i % 5 == 0) {
        lines += json({{"prompt", "what is " + std::to_string(i) + "?"}, {"completion", " it is " + sentences(i, 1)}})
                     .dump() +
                 "\n";
      }
    }
    write_text(folder_ / "in/lines.jsonl.gz", gzip(lines));
    BpeTraining training;
    training.vocabulary_size = 300;
    training.threads = 1;
    const std::string text = sentences(0, 400);
    const std::vector<std::string_view> texts{text};
    write_text(folder_ / "tokenizer.json", train_bpe(texts, training).json);
  }
  Path operator/(const std::string& name) const { return folder_ / name; }

  PrepareOptions options(const std::string& out) const {
    PrepareOptions options;
    options.paths = {(folder_ / "in").string()};
    options.out = folder_ / out;
    options.tokenizer = (folder_ / "tokenizer.json").string();
    options.held_out = 0.2;
    options.deduplicate = true;
    options.shard_tokens = 4096;
    return options;
  }

 private:
  TemporaryFolder folder_;
};

std::map<std::string, std::string> files_of(const Path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename() != ".lock") files[entry.path().filename()] = read_file(entry.path());
  }
  return files;
}

// The first file in which two folders differ; empty when none does.
std::string first_other(const Path& a, const Path& b) {
  const auto mine = files_of(a), theirs = files_of(b);
  for (const auto& [name, bytes] : mine) {
    if (!theirs.contains(name) || theirs.at(name) != bytes) return name;
  }
  for (const auto& [name, bytes] : theirs) {
    if (!mine.contains(name)) return name;
  }
  return "";
}

std::vector<std::int32_t> ids_of(const TokenShards& shards, ShardSet set) {
  std::vector<std::int32_t> ids(shards.counts(set).tokens);
  shards.read(set, 0, ids);
  return ids;
}

TEST_CASE("shards hold the tokens of every document and an end token behind each") {
  const Corpus corpus;
  const PrepareReport report = prepare(corpus.options("out"), model_opener());
  const TokenShards shards(corpus / "out");
  CHECK(report.files == 4);
  CHECK(report.duplicates == 51);  // again.txt and the 50 entries that come twice
  CHECK(report.train.documents + report.held_out.documents == 2 + 350 + 80);
  CHECK(report.held_out.documents > 40);
  CHECK(report.held_out.documents < 140);
  CHECK(shards.sha256() == report.sha256);
  CHECK(shards.vocab() == 300);

  // The same by hand.
  const auto tokenizer = load_tokenizer(corpus / "tokenizer.json");
  const std::int32_t end = tokenizer->id_of("<|endoftext|>").value();
  CHECK(shards.end_token() == end);
  std::vector<std::int32_t> wanted[2];
  std::vector<bool> counting[2];
  std::set<std::string> seen;
  for (const auto& document : documents(document_files({(corpus / "in").string()}), {})) {
    std::string whole = document[0].text;
    if (document.size() > 1) whole += std::string(1, '\0') + document[1].text;
    const std::string digest = sha256_hex(whole);
    if (!seen.insert(digest).second) continue;
    const int set = std::stoull(digest.substr(0, 16), nullptr, 16) < static_cast<std::uint64_t>(0.2 * 0x1p64) ? 1 : 0;
    for (const Read& piece : document) {
      tokenizer->encode_to(piece.text, {}, wanted[set]);
      counting[set].resize(wanted[set].size(), piece.counts);
    }
    wanted[set].push_back(end);
    counting[set].push_back(true);
  }
  for (const ShardSet set : {ShardSet::train, ShardSet::held_out}) {
    const auto s = static_cast<std::size_t>(set);
    CHECK(ids_of(shards, set) == wanted[s]);
    std::uint64_t ignored = 0;
    bool same = true;
    for (std::size_t i = 0; i < counting[s].size(); ++i) {
      same = same && shards.counts_as_target(set, i) == counting[s][i];
      ignored += counting[s][i] ? 0 : 1;
    }
    CHECK(same);
    CHECK(ignored == shards.counts(set).ignored);
    CHECK(ignored > 0);
    std::uint64_t number = 0;
    shards.for_each_document(set, [&](const DocumentRecord& record) {
      ++number;
      CHECK(wanted[s].at(record.end - 1) == end);
    });
    CHECK(number == shards.counts(set).documents);
  }
  CHECK(fs::exists(corpus / "out/train-00003.tokens"));  // several shards of 4096 tokens
  CHECK(fs::file_size(corpus / "out/train-00000.tokens") == 2 * 4096);
}

TEST_CASE("any number of threads gives the same bytes") {
  const Corpus corpus;
  prepare(corpus.options("one"), model_opener());
  PrepareOptions four = corpus.options("four");
  four.threads = 4;
  prepare(four, model_opener());
  CHECK(first_other(corpus / "one", corpus / "four") == "");
}

// Stops a preparation at the given document count, by an interrupt or as if the machine went off.
void stop_at(const Corpus& corpus, const std::string& out, std::uint64_t documents, bool power_off) {
  std::uint64_t at = 0;
  PrepareHooks hooks;
  hooks.on_progress = [&](const PrepareProgress& progress) {
    at = progress.documents;
    if (power_off && at >= documents) throw std::runtime_error("power off");
  };
  hooks.interrupted = [&] { return at >= documents; };
  bool ended_early = false;
  try {
    ended_early = prepare(corpus.options(out), model_opener(), hooks).interrupted;
  } catch (const std::runtime_error& error) {
    ended_early = std::string(error.what()) == "power off";
  }
  CHECK(ended_early);
}

TEST_CASE("a preparation that was stopped goes on with the bytes of one that was not") {
  const Corpus corpus;
  // Batches of one document each, nearly: the line holds 256 KiB, so texts are made long enough to be stopped between.
  for (int i = 0; i < 12; ++i) write_text(corpus / ("in/more-" + std::to_string(i) + ".txt"), sentences(i * 37, 5000));
  prepare(corpus.options("whole"), model_opener());
  for (const bool power_off : {false, true}) {
    for (const std::uint64_t documents : {1U, 4U, 9U}) {
      const std::string out = (power_off ? "off-" : "stopped-") + std::to_string(documents);
      INFO(out);
      stop_at(corpus, out, documents, power_off);
      CHECK_FALSE(is_token_shards(corpus / out));
      CHECK_THAT(error_of([&] { TokenShards(corpus / out); }).what(), Contains("go on with samba prepare --resume"));
      CHECK_THAT(error_of([&] { prepare(corpus.options(out), model_opener()); }).what(),
                 Contains("holds an unfinished preparation; go on with --resume"));
      PrepareOptions again = corpus.options(out);
      again.resume = true;
      again.held_out = 0.25;
      CHECK_THAT(error_of([&] { prepare(again, model_opener()); }).what(),
                 Contains("--resume: held_out is 0.25, the preparation was begun with 0.2"));
      again.held_out = 0.2;
      const PrepareReport report = prepare(again, model_opener());
      CHECK(report.duplicates == 51);
      CHECK(first_other(corpus / out, corpus / "whole") == "");
    }
  }
}

TEST_CASE("a state that is recorded often, and shards that close between, lose nothing") {
  const Corpus corpus;
  for (int i = 0; i < 6; ++i) write_text(corpus / ("in/more-" + std::to_string(i) + ".txt"), sentences(i * 37, 5000));
  prepare(corpus.options("whole"), model_opener());
  // Interrupted at every place where it can be, again and again.
  PrepareOptions options = corpus.options("often");
  PrepareHooks hooks;
  hooks.interrupted = [] { return true; };
  int parts = 1;
  while (prepare(options, model_opener(), hooks).interrupted) {
    options.resume = true;
    ++parts;
  }
  CHECK(parts > 3);
  CHECK(first_other(corpus / "often", corpus / "whole") == "");
}

TEST_CASE("one flipped bit anywhere is refused with the file's name") {
  const Corpus corpus;
  prepare(corpus.options("out"), model_opener());
  int files = 0;
  for (const auto& [name, bytes] : files_of(corpus / "out")) {
    if (name == "tokenizer.json" || bytes.empty()) continue;  // training looks at the first
    ++files;
    for (const std::size_t place : {std::size_t{0}, bytes.size() / 2, bytes.size() - 2}) {
      std::string flipped = bytes;
      flipped[place] = static_cast<char>(flipped[place] ^ 1);
      write_text(corpus / ("out/" + name), flipped);
      INFO(name << " at " << place);
      const Error error = error_of([&] { TokenShards(corpus / "out"); });
      CHECK(error.kind() == ErrorKind::corrupt);
      CHECK_THAT(error.what(), Contains(name));
    }
    write_text(corpus / ("out/" + name), bytes.substr(0, bytes.size() - 1));
    CHECK(error_of([&] { TokenShards(corpus / "out"); }).kind() == ErrorKind::corrupt);
    write_text(corpus / ("out/" + name), bytes);
  }
  CHECK(files > 8);
  CHECK_NOTHROW(TokenShards(corpus / "out"));
  fs::remove(corpus / "out/train-00001.tokens");
  CHECK_THAT(error_of([&] { TokenShards(corpus / "out"); }).what(), Contains("train-00001.tokens is missing"));
}

TEST_CASE("what cannot be prepared is refused by its name") {
  const Corpus corpus;
  const auto message = [&](const std::function<void(PrepareOptions&)>& change) {
    PrepareOptions options = corpus.options("out");
    change(options);
    return std::string(error_of([&] { prepare(options, model_opener()); }).what());
  };
  CHECK_THAT(message([](PrepareOptions& o) { o.paths = {"/nowhere/at all"}; }),
             Contains("there is no file or folder /nowhere/at all"));
  CHECK_THAT(message([](PrepareOptions& o) { o.held_out = 1.0; }), Contains("--held-out: must be a number in [0, 1)"));
  CHECK_THAT(message([](PrepareOptions& o) { o.shard_tokens = 12; }),
             Contains("--shard-tokens: must be a multiple of 8"));
  CHECK_THAT(message([](PrepareOptions& o) { o.end_token = "<nothing>"; }),
             Contains("--end-token: must be a token of the tokenizer") && Contains("\"<nothing>\""));
  CHECK_THAT(message([](PrepareOptions& o) { o.end_token = "300"; }), Contains("an id in [0, 300)"));
  CHECK_THAT(message([](PrepareOptions& o) { o.tokenizer = "/none"; }), Contains("there is no tokenizer /none"));
  CHECK_THAT(message([&](PrepareOptions& o) { o.out = corpus / "in"; }),
             Contains("holds something else (a.txt)") || Contains("holds something else"));
  CHECK_THAT(message([](PrepareOptions& o) { o.resume = true; }), Contains("holds no preparation that was begun"));
  write_text(corpus / "nothing.txt", "");
  CHECK_THAT(message([&](PrepareOptions& o) { o.paths = {(corpus / "nothing.txt").string()}; }),
             Contains("hold no document to train on"));
  fs::remove_all(corpus / "out");
  prepare(corpus.options("out"), model_opener());
  CHECK_THAT(message([](PrepareOptions&) {}), Contains("already holds token shards; --force replaces them"));
  CHECK_THAT(message([](PrepareOptions& o) { o.resume = true; }), Contains("is prepared to its end"));
  PrepareOptions force = corpus.options("out");
  force.force = true;
  force.tokenizer.clear();
  const PrepareReport bytes = prepare(force, model_opener());
  const TokenShards shards(corpus / "out");
  CHECK(shards.vocab() == 256);
  CHECK(shards.end_token() == 10);
  CHECK(bytes.train.tokens == bytes.train.bytes + bytes.train.documents);
}

TEST_CASE("samba prepare reports, and its shards need nothing else") {
  const Corpus corpus;
  const auto command = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments{"prepare", (corpus / "in").string(), "--tokenizer",
                                       (corpus / "tokenizer.json").string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return samba_command(arguments);
  };
  const CommandResult result =
      command({"--out", (corpus / "shards").string(), "--held-out", "0.2", "--dedup", "--json", "--threads", "2"});
  INFO(result.err);
  REQUIRE(result.code == 0);
  const json report = json::parse(result.out);
  CHECK(report["finished"] == true);
  CHECK(report["duplicates"] == 51);
  CHECK(report["bytes_per_token"].get<double>() > 1.5);
  CHECK(report["train"]["ignored_targets"].get<int>() > 0);
  const CommandResult text = command({"--out", (corpus / "again").string(), "--held-out", "0.2", "--dedup"});
  CHECK_THAT(text.out, Contains("documents") && Contains("bytes a token") && Contains("51 duplicates dropped"));
  CHECK(read_file(corpus / "again/index.json") == read_file(corpus / "shards/index.json"));
  const CommandResult refused = command({"--out", (corpus / "shards").string()});
  CHECK(refused.code == 2);
  const CommandResult nothing =
      command({"--out", (corpus / "few").string(), "--documents", "file", "--held-out", "0.000000001"});
  CHECK(nothing.code == 0);
  CHECK_THAT(nothing.err, Contains("no document was held out"));
}

}  // namespace
}  // namespace samba
