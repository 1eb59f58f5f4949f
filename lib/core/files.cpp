#include "samba/core/files.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <system_error>
#include <utility>

#include "samba/core/error.h"
#include "samba/core/streams.h"
#include "samba/core/system_calls.h"
#include "samba/core/temporaries.h"

namespace samba {

namespace {

constexpr int kNameAttempts = 16;

// A name of something that this process has open already; what it leads to must not be replaced.
bool is_descriptor(const Path& path) {
  const std::string name = path.lexically_normal().string();
  return name == "/dev/stdout" || name == "/dev/stderr" || name.starts_with("/dev/fd/") || name.starts_with("/proc/");
}

// What is written as it comes: a pipe, a device, something open already.
bool is_stream(const Path& path, std::filesystem::file_status status) {
  return std::filesystem::is_fifo(status) || std::filesystem::is_character_file(status) || is_descriptor(path);
}

// Where a chain of symbolic links leads, whether or not something is there.
Path behind_links(Path path) {
  constexpr int kMostLinks = 40;
  std::error_code error;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(path, error); ++i) {
    const Path next = std::filesystem::read_symlink(path, error);
    if (error) break;
    path = next.is_absolute() ? next : path.parent_path() / next;
  }
  return path;
}

// Opens a regular file for reading and tells its size.
int open_regular(const Path& path, std::uint64_t& size) {
  // Not to wait for the writer of a pipe, which is refused below.
  const int descriptor = open_again(path, O_RDONLY | O_NONBLOCK);
  if (descriptor < 0) throw_file_error("open", path, errno);
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) {
    const int error = errno;
    ::close(descriptor);
    throw_file_error("inspect", path, error);
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(descriptor);
    refuse_value("cannot read " + path.string() + ": it is " +
                 (S_ISDIR(status.st_mode) ? "a folder" : "not a regular file") + ", a file is needed");
  }
  size = static_cast<std::uint64_t>(status.st_size);
  return descriptor;
}

mode_t process_umask() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return mask;
}

std::string random_suffix() {
  std::random_device source;
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (int i = 0; i < 24; ++i) text += kDigits[source() & 15U];
  return text;
}

// Creates a file beside `target`, which others do not see; returns its descriptor and its path.
int create_beside(const Path& target, Path& created) {
  // With the end that is put behind it, the name must not be longer than file systems take.
  constexpr std::size_t kLongestName = 255, kEnd = 29;
  const Path stem = target.parent_path() / target.filename().string().substr(0, kLongestName - kEnd);
  for (int attempt = 0;; ++attempt) {
    created = stem;
    created += ".tmp-" + random_suffix();
    const int descriptor = open_again(created, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (descriptor >= 0) {
      remember_temporary(created);
      return descriptor;
    }
    const int error = errno;
    if (error == EEXIST && attempt < kNameAttempts) continue;
    created.clear();
    throw_file_error("create a file beside", target, error);
  }
}

}  // namespace

void throw_file_error(const std::string& action, const Path& path, int error) {
  throw Error(kind_of_system_error(error),
              "cannot " + action + " " + path.string() + ": " + std::generic_category().message(error));
}

FileReader::FileReader(Path path) : path_(std::move(path)) { descriptor_ = open_regular(path_, size_); }

FileReader::~FileReader() { ::close(descriptor_); }

std::size_t FileReader::read(void* buffer, std::size_t bytes) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t got = ::read(descriptor_, static_cast<char*>(buffer) + done, std::min(bytes - done, kPiece));
    if (got < 0) {
      if (errno == EINTR) continue;
      throw_file_error("read", path_, errno);
    }
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  position_ += done;
  return done;
}

void FileReader::seek(std::uint64_t position) {
  if (::lseek(descriptor_, static_cast<off_t>(position), SEEK_SET) < 0) throw_file_error("seek in", path_, errno);
  position_ = position;
}

std::string read_file(const Path& path, std::uint64_t most_bytes) {
  FileReader reader(path);
  if (reader.size() > most_bytes) {
    refuse_value(path.string() + " has " + std::to_string(reader.size()) + " bytes, at most " +
                 std::to_string(most_bytes) + " are accepted");
  }
  std::string content(reader.size(), '\0');
  content.resize(reader.read(content.data(), content.size()));
  return content;
}

AtomicFile::AtomicFile(Path target, unsigned mode) : target_(std::move(target)), mode_(mode) {
  if (target_.filename().empty()) refuse_value("cannot write " + target_.string() + ": a file name is needed");
  std::error_code ignored;
  const auto status = std::filesystem::status(target_, ignored);
  if (std::filesystem::is_directory(status)) {
    refuse_value("cannot write " + target_.string() + ": it is a folder, a file is needed");
  }
  if (is_stream(target_, status)) {
    descriptor_ = open_again(target_, O_WRONLY);
    if (descriptor_ < 0) throw_file_error("open", target_, errno);
    return;
  }
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    refuse_value("cannot write " + target_.string() + ": it is not a regular file");
  }
  target_ = behind_links(std::move(target_));
  if (std::filesystem::is_symlink(target_, ignored)) throw_file_error("write", target_, ELOOP);
  descriptor_ = create_beside(target_, temporary_);
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
    descriptor_ = -1;
  }
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
    forget_temporary(temporary_);
    temporary_.clear();
  }
}

void AtomicFile::fail(const std::string& action, int error) {
  discard();
  throw_file_error(action, target_, error);
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  if (descriptor_ < 0) throw Error(ErrorKind::internal, "write to a finished file: " + target_.string());
  if (const int error = write_all(descriptor_, static_cast<const char*>(data), bytes); error != 0) {
    fail("write", error);
  }
}

void AtomicFile::commit() {
  if (descriptor_ < 0) throw Error(ErrorKind::internal, "commit of a finished file: " + target_.string());
  if (temporary_.empty()) {  // a pipe or a device
    if (close_once(std::exchange(descriptor_, -1)) != 0) fail("close", errno);
    return;
  }
  if (again([&] { return ::fchmod(descriptor_, mode_ & ~process_umask()); }) != 0) fail("set the mode of", errno);
  if (again([&] { return ::fsync(descriptor_); }) != 0) fail("make durable", errno);
  if (close_once(std::exchange(descriptor_, -1)) != 0) fail("close", errno);
  if (again([&] { return ::rename(temporary_.c_str(), target_.c_str()); }) != 0) fail("replace", errno);
  forget_temporary(temporary_);
  temporary_.clear();
  const Path folder = target_.parent_path();
  sync_folder(folder.empty() ? Path(".") : folder);
}

void check_can_write(const Path& target) {
  std::error_code ignored;
  if (is_stream(target, std::filesystem::status(target, ignored))) return;
  const AtomicFile file(target);
}

void write_file_atomically(const Path& path, std::string_view content, unsigned mode) {
  AtomicFile file(path, mode);
  file.write(content);
  file.commit();
}

void sync_folder(const Path& folder) {
  const int descriptor = open_again(folder, O_RDONLY | O_DIRECTORY);
  if (descriptor < 0) throw_file_error("open the folder", folder, errno);
  const int result = again([&] { return ::fsync(descriptor); });
  const int error = errno;
  ::close(descriptor);
  // Some file systems have no fsync for folders (EINVAL); there is nothing more to ask of them.
  if (result != 0 && error != EINVAL) throw_file_error("make durable the folder", folder, error);
}

}  // namespace samba
