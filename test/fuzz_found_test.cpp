// What fuzzing found once (test/fuzz/found) is read or refused, and so are sound files with random changes. The search
// itself is scripts/fuzz.sh; here the same readers run without it, in every build.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "fuzz/parts.h"
#include "fuzz/readers.h"
#include "fuzz/seeds.h"

namespace samba::fuzz {
namespace {

namespace fs = std::filesystem;

Bytes bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

const std::map<std::string, std::vector<std::string>>& seeds() {
  static const auto all = make_seeds();
  return all;
}

// One to four changes: a bit, a byte, a run cut out, doubled or overwritten with another number.
std::string changed(std::string file, std::mt19937_64& random) {
  const auto below = [&](std::size_t count) { return static_cast<std::size_t>(random() % count); };
  for (std::size_t changes = 1 + below(4); changes > 0 && !file.empty(); --changes) {
    const std::size_t at = below(file.size());
    const std::size_t run = std::min(1 + below(below(8) == 0 ? file.size() : 8), file.size() - at);
    static constexpr std::uint64_t kNumbers[] = {
        0, 1, 255, 256, 65535, 1U << 31, 0xFFFFFFFFU, ~std::uint64_t{0}, 1ULL << 63};
    switch (below(5)) {
      case 0:
        file[at] = static_cast<char>(file[at] ^ (1 << below(8)));
        break;
      case 1:
        file[at] = static_cast<char>(below(256));
        break;
      case 2:
        file.erase(at, run);
        break;
      case 3:
        file.insert(at, file.substr(at, run));
        break;
      default: {
        const std::uint64_t number = kNumbers[below(std::size(kNumbers))];
        const auto* raw = reinterpret_cast<const char*>(&number);
        file.replace(at, std::min<std::size_t>(run, 8), raw, std::min<std::size_t>(run, 8));
      }
    }
  }
  return file;
}

}  // namespace

TEST_CASE("every input that fuzzing found is read or refused") {
  std::size_t inputs = 0;
  const Path found = Path(SAMBA_SOURCE_DIR) / "test/fuzz/found";
  for (const auto& folder : fs::directory_iterator(found)) {
    const Reader* reader = find_reader(folder.path().filename().string());
    INFO(folder.path());
    REQUIRE(reader != nullptr);
    for (const auto& entry : fs::directory_iterator(folder)) {
      run(*reader, bytes_of(read_file(entry.path())));  // ends the process otherwise
      ++inputs;
    }
  }
  CHECK(inputs > 0);
}

TEST_CASE("every reader has inputs to begin with, and reads some of them") {
  for (const Reader& reader : readers()) {
    INFO(reader.name);
    REQUIRE(seeds().contains(reader.name));
    std::size_t read = 0;
    for (const std::string& seed : seeds().at(reader.name)) read += run(reader, bytes_of(seed)) ? 1 : 0;
    CHECK(read > 0);
  }
  CHECK(seeds().size() == readers().size());
}

TEST_CASE("a part of a file that is put in its own place gives a file that is read as well") {
  for (const char* name :
       {"torch", "gguf", "safetensors", "samba_archive", "stack_archive", "case_file", "tokenizer_model"}) {
    const Reader& reader = *find_reader(name);
    std::size_t parts = 0;
    for (const std::string& seed : seeds().at(name)) {
      if (!run(reader, bytes_of(seed))) continue;
      for (std::uint64_t choice = 0; choice < 12; ++choice) {
        const auto part = part_of(name, seed, choice);
        if (!part) continue;
        INFO(name << ", part " << choice << " of " << part->content.size() << " bytes");
        CHECK(run(reader, bytes_of(part->file_with(part->content))));
        ++parts;
      }
    }
    INFO(name);
    CHECK(parts > 0);
  }
}

// SAMBA_FUZZ_INPUTS=N: so many a reader. SAMBA_FUZZ_KEEP=FILE holds the input that is being read.
TEST_CASE("sound files with random changes are read or refused") {
  const char* count = std::getenv("SAMBA_FUZZ_INPUTS");
  const char* keep = std::getenv("SAMBA_FUZZ_KEEP");
  const std::size_t inputs = count == nullptr ? 300 : std::stoul(count);
  std::mt19937_64 random(1);
  for (const Reader& reader : readers()) {
    const std::vector<std::string>& of_reader = seeds().at(reader.name);
    for (std::size_t i = 0; i < inputs; ++i) {
      const std::string& sound = of_reader[i % of_reader.size()];
      const auto part = i / of_reader.size() % 2 == 0 ? std::nullopt : part_of(reader.name, sound, random());
      const std::string input = part ? part->file_with(changed(part->content, random)) : changed(sound, random);
      if (keep != nullptr) write_file_atomically(keep, reader.name + ("\n" + input));
      run(reader, bytes_of(input));
    }
  }
  SUCCEED();
}

}  // namespace samba::fuzz
