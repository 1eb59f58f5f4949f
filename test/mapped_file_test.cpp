// A mapped file shows the file's bytes, takes advice without changing them, and refuses what is not a regular file.
#include "samba/core/mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <numeric>
#include <utility>
#include <vector>

#include "error_of.h"
#include "samba/core/error.h"
#include "temporary_folder.h"

using namespace samba;

namespace {

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

std::size_t page_size() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

std::string numbered_bytes(std::size_t count) {
  std::string content(count, '\0');
  for (std::size_t i = 0; i < count; ++i) content[i] = static_cast<char>(i * 7 + i / 251);
  return content;
}

// Pages of the mapping that this process holds now.
std::size_t resident_pages(const MappedFile& file) {
  const auto first = reinterpret_cast<std::uintptr_t>(file.bytes().data()) / page_size();
  FileReader pagemap("/proc/self/pagemap");
  pagemap.seek(first * sizeof(std::uint64_t));
  std::vector<std::uint64_t> entries((file.bytes().size() + page_size() - 1) / page_size());
  REQUIRE(pagemap.read(entries.data(), entries.size() * sizeof(std::uint64_t)) ==
          entries.size() * sizeof(std::uint64_t));
  std::size_t present = 0;
  for (const std::uint64_t entry : entries) present += entry >> 63U;
  return present;
}

}  // namespace

TEST_CASE("a mapped file shows the bytes of the file, and moves with them") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "a", "0123456789");
  write_file_atomically(folder / "b", "other");
  MappedFile mapped(folder / "a");
  CHECK(text_of(mapped) == "0123456789");
  const std::byte* const data = mapped.bytes().data();
  MappedFile moved(std::move(mapped));
  CHECK(moved.bytes().data() == data);
  MappedFile assigned(folder / "b");
  CHECK(text_of(assigned) == "other");
  assigned = std::move(moved);
  CHECK(assigned.bytes().data() == data);
  CHECK(text_of(assigned) == "0123456789");
  std::filesystem::remove(folder / "a");
  CHECK(text_of(assigned) == "0123456789");
}

TEST_CASE("an empty file, and no file at all, give no bytes") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "empty", "");
  const MappedFile empty(folder / "empty");
  CHECK(empty.bytes().empty());
  empty.prefetch(empty.bytes());
  empty.drop(empty.bytes());
  CHECK(MappedFile().bytes().empty());
}

TEST_CASE("what is not a regular file is refused with its path") {
  const TemporaryFolder folder;
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  const auto refused = [&](const std::filesystem::path& path, const std::string& reason) {
    const Error error = error_of([&] { MappedFile file(path); });
    CHECK(error.kind() == ErrorKind::value);
    CHECK(std::string(error.what()).find(path.string()) != std::string::npos);
    CHECK(std::string(error.what()).find(reason) != std::string::npos);
  };
  refused(folder.path(), "it is a folder");
  refused(folder / "pipe", "it is not a regular file");
  refused("/dev/null", "it is not a regular file");
  refused(folder / "missing", "No such file");
}

TEST_CASE("dropped pages are no longer resident, and hold the same bytes when they are read again") {
  const TemporaryFolder folder;
  const std::string content = numbered_bytes(64 * page_size() + 100);
  write_file_atomically(folder / "a", content);
  const MappedFile file(folder / "a");
  REQUIRE(text_of(file) == content);
  REQUIRE(resident_pages(file) == 65);

  file.drop(file.bytes().subspan(16 * page_size(), 32 * page_size()));
  CHECK(resident_pages(file) == 33);
  // Pages that lie in the part only partly stay, but for the file's last one, which ends with the file.
  file.drop(file.bytes().subspan(1, 2 * page_size()));
  CHECK(resident_pages(file) == 32);
  file.drop(file.bytes().subspan(64 * page_size()));
  CHECK(resident_pages(file) == 31);
  file.drop(file.bytes());
  CHECK(resident_pages(file) == 0);
  CHECK(text_of(file) == content);
}

TEST_CASE("advice for memory outside of the mapping is ignored") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "a", numbered_bytes(page_size()));
  const MappedFile file(folder / "a");
  std::vector<std::byte> own(8 * page_size(), std::byte{5});
  file.drop(own);
  file.prefetch(own);
  CHECK(own == std::vector<std::byte>(8 * page_size(), std::byte{5}));
  file.prefetch(file.bytes());
  file.prefetch(file.bytes().subspan(7, 0));
  CHECK(text_of(file) == numbered_bytes(page_size()));
}
