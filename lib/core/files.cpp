#include "samba/core/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <system_error>
#include <utility>

#include "samba/core/error.h"

namespace samba {

namespace {

// One read or write call moves at most this much, so that a signal never finds it far from done.
constexpr std::size_t kPiece = std::size_t{1} << 24;
constexpr int kNameAttempts = 16;

bool path_is_at_fault(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case EACCES:
    case EPERM:
    case ELOOP:
    case ENAMETOOLONG:
      return true;
    default:
      return false;
  }
}

// Opens a regular file for reading and tells its size.
int open_regular(const Path& path, std::uint64_t& size) {
  // Not to wait for the writer of a pipe, which is refused below.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
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

}  // namespace

void throw_file_error(const std::string& action, const Path& path, int error) {
  throw Error(path_is_at_fault(error) ? ErrorKind::value : ErrorKind::resource,
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
  for (int attempt = 0; descriptor_ < 0; ++attempt) {
    temporary_ = target_;
    temporary_ += ".tmp-" + random_suffix();
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (descriptor_ < 0 && (errno != EEXIST || attempt == kNameAttempts)) {
      throw_file_error("create a file beside", target_, errno);
    }
  }
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
    descriptor_ = -1;
  }
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
    temporary_.clear();
  }
}

void AtomicFile::fail(const std::string& action, int error) {
  discard();
  throw_file_error(action, target_, error);
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  if (descriptor_ < 0) throw Error(ErrorKind::internal, "write to a finished file: " + target_.string());
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t wrote = ::write(descriptor_, static_cast<const char*>(data) + done, std::min(bytes - done, kPiece));
    if (wrote < 0) {
      if (errno == EINTR) continue;
      fail("write", errno);
    }
    if (wrote == 0) fail("write", ENOSPC);
    done += static_cast<std::size_t>(wrote);
  }
}

void AtomicFile::commit() {
  if (descriptor_ < 0) throw Error(ErrorKind::internal, "commit of a finished file: " + target_.string());
  if (::fchmod(descriptor_, mode_ & ~process_umask()) != 0) fail("set the mode of", errno);
  if (::fsync(descriptor_) != 0) fail("make durable", errno);
  const int closed = ::close(std::exchange(descriptor_, -1));
  if (closed != 0) fail("close", errno);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail("replace", errno);
  temporary_.clear();
  const Path folder = target_.parent_path();
  sync_folder(folder.empty() ? Path(".") : folder);
}

void write_file_atomically(const Path& path, std::string_view content, unsigned mode) {
  AtomicFile file(path, mode);
  file.write(content);
  file.commit();
}

void sync_folder(const Path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw_file_error("open the folder", folder, errno);
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  // Some file systems have no fsync for folders (EINVAL); there is nothing more to ask of them.
  if (result != 0 && error != EINVAL) throw_file_error("make durable the folder", folder, error);
}

}  // namespace samba
