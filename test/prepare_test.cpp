// samba prepare: token shards, the same bytes for any number of threads and after any stop, what is refused.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <set>

#include "command.h"
#include "document_text.h"
#include "error_of.h"
#include "samba/convert/initial_model.h"
#include "samba/formats/token_shards.h"
#include "samba/text/bpe_trainer.h"
#include "samba/text/tokenizer.h"
#include "samba/train/prepare.h"

namespace samba {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

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
