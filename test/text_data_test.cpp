// Training text: how files join, which windows a step reads, what is refused.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <set>

#include <unistd.h>

#include "samba/core/error.h"
#include "samba/core/sha256.h"
#include "samba/numerics/philox.h"
#include "samba/train/data.h"
#include "samba/train/text_training_data.h"
#include "samba/train/window_order.h"

namespace samba {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

// A folder that goes away with the test.
class Folder {
 public:
  Folder()
      : path_(fs::temp_directory_path() /
              ("samba-data-" + std::to_string(::getpid()) + "-" + std::to_string(count_++))) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  std::string write(const std::string& name, const std::string& content) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << content;
    return (path_ / name).string();
  }
  const fs::path& path() const { return path_; }

 private:
  static inline int count_ = 0;
  fs::path path_;
};

std::string all(const TextData& text) {
  std::string content(text.size(), '\0');
  text.copy(0, {reinterpret_cast<std::uint8_t*>(content.data()), content.size()});
  return content;
}

TEST_CASE("a folder gives its regular files in bytewise path order with one newline between; links are skipped") {
  const Folder folder;
  folder.write("b/z.txt", "zz");
  folder.write("b.txt", "dot");
  folder.write("A", "upper");
  folder.write("empty", "");
  fs::create_symlink(folder.path() / "A", folder.path() / "link");
  fs::create_directory_symlink(folder.path() / "b", folder.path() / "c");
  const std::string extra = folder.write("../samba-data-extra-" + std::to_string(::getpid()), "extra\n");
  const TextData text({folder.path().string(), extra});
  CHECK(text.files() == 5);
  CHECK(all(text) == "upper\ndot\nzz\n\nextra\n");
  std::string runs;
  text.for_each_run(
      8, [&](const std::uint8_t* data, std::size_t n) { runs.append(reinterpret_cast<const char*>(data), n); });
  CHECK(runs == "upper\ndo");
  CHECK(text.checked_sha256(8, 256) == sha256_hex("upper\ndo"));
  // Any window, also across borders and empty files.
  const std::string whole = all(text);
  for (std::size_t start = 0; start < whole.size(); ++start) {
    for (std::size_t n = 1; start + n <= whole.size(); ++n) {
      std::string window(n, '\0');
      text.copy(start, {reinterpret_cast<std::uint8_t*>(window.data()), n});
      REQUIRE(window == whole.substr(start, n));
    }
  }
  fs::remove(extra);
}

TEST_CASE("missing and empty text is refused with the path") {
  const Folder folder;
  CHECK_THROWS_WITH(TextData({"/nowhere/at all"}),
                    Contains("/data/paths/0: there is no file or folder /nowhere/at all"));
  const std::string empty = folder.write("nothing", "");
  CHECK_THROWS_WITH(TextData({empty}), Contains("the training text is empty: 1 file(s), 0 bytes"));
  CHECK_THROWS_WITH(TextData({empty, empty}), Contains("the training text is empty: 2 file(s), 0 bytes"));
  fs::create_directory(folder.path() / "bare");
  CHECK_THROWS_WITH(TextData({(folder.path() / "bare").string()}), Contains("bare has no regular file"));
}

TEST_CASE("a byte outside the vocabulary is refused with file, position and value") {
  const Folder folder;
  const TextData text({folder.write("a.txt", "abcz")});
  CHECK_THROWS_WITH(text.check_tokens(122),
                    Contains("token 122 at byte 3 of") && Contains("a.txt") && Contains("[0, 122)"));
  CHECK_NOTHROW(text.check_tokens(123));
  const TextData two({folder.write("x", "\x01"), folder.write("y", "\x02")});
  CHECK_THROWS_WITH(two.check_tokens(5), Contains("token 10 at the border of two files"));
}

TEST_CASE("draw.v1: the start of row b of step s is the high half of word * count") {
  const std::uint64_t count = 1000003;
  const auto order = draw_order(2024, count);
  CHECK(order->name() == "draw.v1");
  std::uint64_t starts[4];
  order->starts(5, starts);
  for (std::uint64_t b = 0; b < 4; ++b) {
    const PhiloxWords words = philox_block(std::uint64_t{2024} ^ 0x53414D4241, 0, 5 * 4 + b);
    // The product by halves of the count, which fits here: count < 2^32.
    const std::uint64_t low = (std::uint64_t{words[0]} * count) >> 32;
    CHECK(starts[b] == (std::uint64_t{words[1]} * count + low) >> 32);
    CHECK(starts[b] < count);
  }
  // Recorded: the order stays readable for good.
  CHECK(std::vector<std::uint64_t>(starts, starts + 4) == std::vector<std::uint64_t>{505478, 899889, 386010, 172729});
}

TEST_CASE("permute.v1 reads each window once an epoch, in another order every epoch") {
  for (const std::uint64_t count : {1U, 2U, 3U, 7U, 64U, 65U, 1000U}) {
    std::set<std::uint64_t> first;
    std::set<std::uint64_t> second;
    int same = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t a = permuted_index(9, 0, i, count);
      const std::uint64_t b = permuted_index(9, 1, i, count);
      REQUIRE(a < count);
      first.insert(a);
      second.insert(b);
      same += a == b ? 1 : 0;
    }
    CHECK(first.size() == count);
    CHECK(second.size() == count);
    if (count >= 64) CHECK(same < static_cast<int>(count) / 4);
  }
  const auto order = permute_order(9, 10, 128);
  std::uint64_t starts[4];
  std::vector<std::uint64_t> epoch;
  for (std::uint64_t step = 0; step < 5; ++step) {
    order->starts(step, starts);
    epoch.insert(epoch.end(), starts, starts + 4);
  }
  for (const std::uint64_t start : epoch) CHECK(start % 128 == 0);
  CHECK(std::set<std::uint64_t>(epoch.begin(), epoch.begin() + 10).size() == 10);
  CHECK(std::set<std::uint64_t>(epoch.begin() + 10, epoch.end()).size() == 10);
  CHECK(std::vector<std::uint64_t>(epoch.begin(), epoch.begin() + 10) ==
        std::vector<std::uint64_t>{768, 512, 128, 384, 0, 256, 640, 1152, 1024, 896});
}

TEST_CASE("a start_positions file fixes the starts; what does not fit is refused with its line") {
  const Folder folder;
  const auto order = start_positions_order(folder.write("good", "1 2\n30 4\n"), 2, 31, 2);
  std::uint64_t starts[2];
  order->starts(1, starts);
  CHECK(starts[0] == 30);
  CHECK(starts[1] == 4);
  CHECK_THROWS_WITH(start_positions_order(folder.write("room", "1 2\n31 4\n"), 2, 31, 2),
                    Contains("line 2 of") && Contains("31 leaves no room") && Contains("0 to 30"));
  CHECK_THROWS_WITH(start_positions_order(folder.write("rows", "1 2 3\n"), 2, 31, 1),
                    Contains("must have 2 start positions") && Contains("got 3"));
  CHECK_THROWS_WITH(start_positions_order(folder.write("word", "1 x\n"), 2, 31, 1), Contains("must be integers >= 0"));
  CHECK_THROWS_WITH(start_positions_order(folder.write("short", "1 2\n"), 2, 31, 2),
                    Contains("has 1 lines") && Contains("/steps is 2"));
}

TEST_CASE("a batch holds each window and the same one byte on") {
  const Folder folder;
  TrainConfig config;
  config.data.paths = {folder.write("t", "abcdefgh")};
  config.model.vocab = 256;
  config.batch.length = 4;
  const auto text = open_text_data(config, {});
  const std::uint64_t starts[] = {0, 3};
  const WindowBatch batch = make_batch(*text, DataPart::training, starts, 4);
  CHECK(batch.inputs.shape() == Shape{2, 4});
  const auto text_of = [](const Array& array) {
    std::string s;
    for (const std::int32_t id : array.values<std::int32_t>()) s += static_cast<char>(id);
    return s;
  };
  CHECK(text_of(batch.inputs) == "abcddefg");
  CHECK(text_of(batch.targets) == "bcdeefgh");
}

}  // namespace
}  // namespace samba
