// What samba prepare and training read of text files: packed files as their content, documents, pieces of long ones.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>

#include "command.h"
#include "document_text.h"
#include "error_of.h"
#include "samba/formats/byte_source.h"

namespace samba {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

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

}  // namespace
}  // namespace samba
