// Files are replaced as a whole or not at all; every failure is an error that names the path.
#include "samba/core/files.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "error_of.h"
#include "file_faults.h"
#include "samba/core/error.h"
#include "samba/core/sha256.h"
#include "temporary_folder.h"

using namespace samba;

namespace {}  // namespace

TEST_CASE("SHA-256 gives the published digests, whole and in pieces") {
  CHECK(sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 hash;
  for (int i = 0; i < 1000000; i += 100) hash.update(std::string(100, 'a'));
  CHECK(hash.finish_hex() == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  hash.update("abc");
  CHECK(hash.finish_hex() == sha256_hex("abc"));
}

TEST_CASE("a file is written with mode 0644 less the umask, and is durable with its folder") {
  faults::reset();
  const TemporaryFolder folder;
  const mode_t before = ::umask(027);
  write_file_atomically(folder / "a", "first");
  ::umask(before);
  struct stat status {};
  REQUIRE(::stat((folder / "a").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0640);
  CHECK(read_file(folder / "a") == "first");
  CHECK(faults::fsync.calls.load() == 2);
  write_file_atomically(folder / "a", "second");
  CHECK(read_file(folder / "a") == "second");
  CHECK(folder.entries() == 1);
}

TEST_CASE("the old file stays, and no temporary file, whichever call fails") {
  faults::reset();
  const TemporaryFolder folder;
  write_file_atomically(folder / "a", "old");
  const auto fails = [&](const char* what) {
    const Error error = error_of([&] { write_file_atomically(folder / "a", "new"); });
    INFO(what << ": " << error.what());
    CHECK(error.kind() == ErrorKind::resource);
    CHECK(std::string(error.what()).find((folder / "a").string()) != std::string::npos);
    CHECK(read_file(folder / "a") == "old");
    CHECK(folder.entries() == 1);
    faults::reset();
  };
  faults::error = ENOSPC;
  faults::write.failing = 1;
  fails("disk full");
  faults::error = EIO;
  faults::fsync.failing = 1;
  fails("fsync");
  faults::error = EIO;
  faults::rename.failing = 1;
  fails("rename");
}

TEST_CASE("the disk-full message says so") {
  faults::reset();
  const TemporaryFolder folder;
  faults::error = ENOSPC;
  faults::write.failing = 1;
  const Error error = error_of([&] { write_file_atomically(folder / "a", "new"); });
  CHECK(std::string(error.what()).find("No space left on device") != std::string::npos);
  CHECK(folder.entries() == 0);
}

TEST_CASE("short and interrupted writes are continued") {
  faults::reset();
  const TemporaryFolder folder;
  faults::most_bytes = 3;
  faults::error = EINTR;
  faults::write.failing = 2;
  write_file_atomically(folder / "a", "0123456789");
  CHECK(faults::write.calls.load() == 5);
  faults::reset();
  CHECK(read_file(folder / "a") == "0123456789");
}

TEST_CASE("a target that is a folder is refused and left alone") {
  faults::reset();
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "a");
  const Error error = error_of([&] { write_file_atomically(folder / "a", "new"); });
  CHECK(error.kind() == ErrorKind::value);
  CHECK(folder.entries() == 1);
}

TEST_CASE("a file that was not committed leaves nothing behind") {
  faults::reset();
  const TemporaryFolder folder;
  {
    AtomicFile file(folder / "a");
    file.write("half");
    CHECK(folder.entries() == 1);
    struct stat status {};
    REQUIRE(::stat(file.temporary().c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
  }
  CHECK(folder.entries() == 0);
}

TEST_CASE("whether a file can be written is asked without leaving or touching anything") {
  faults::reset();
  const TemporaryFolder folder;
  write_file_atomically(folder / "old", "content");
  check_can_write(folder / "old");
  check_can_write(folder / "new");
  check_can_write("/dev/stdout");
  CHECK(read_file(folder / "old") == "content");
  CHECK(folder.entries() == 1);
  CHECK_THROWS_WITH(check_can_write(folder / "none" / "a"), Catch::Contains("No such file or directory"));
  CHECK_THROWS_WITH(check_can_write(folder.path()), Catch::Contains("it is a folder"));
}

TEST_CASE("paths that cannot be read are bad input and are named") {
  faults::reset();
  const TemporaryFolder folder;
  const Error missing = error_of([&] { read_file(folder / "none"); });
  CHECK(missing.kind() == ErrorKind::value);
  CHECK(std::string(missing.what()).find("none: No such file or directory") != std::string::npos);
  const Error directory = error_of([&] { read_file(folder.path()); });
  CHECK(directory.kind() == ErrorKind::value);
  CHECK(std::string(directory.what()).find("a folder") != std::string::npos);
  CHECK(error_of([&] { AtomicFile(folder / "none" / "a"); }).kind() == ErrorKind::value);
  write_file_atomically(folder / "a", "12345");
  CHECK_THROWS_WITH(read_file(folder / "a", 4), Catch::Contains("5 bytes") && Catch::Contains("at most 4"));
}

TEST_CASE("a file can be read in pieces and mapped") {
  faults::reset();
  const TemporaryFolder folder;
  write_file_atomically(folder / "a", "0123456789");
  FileReader reader(folder / "a");
  CHECK(reader.size() == 10);
  char buffer[8] = {};
  CHECK(reader.read(buffer, 8) == 8);
  CHECK(reader.read(buffer, 8) == 2);
  CHECK(reader.read(buffer, 8) == 0);
  reader.seek(4);
  CHECK(reader.read(buffer, 2) == 2);
  CHECK(std::string(buffer, 2) == "45");
}
