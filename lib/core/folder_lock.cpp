#include "samba/core/folder_lock.h"

#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cerrno>
#include <cstdlib>

#include "samba/core/error.h"
#include "samba/core/system_calls.h"

namespace samba {

namespace {

constexpr std::size_t kLongestNote = 256;

std::string host_name() {
  std::array<char, kLongestNote> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : std::string("this host");
}

// "PID HOST\n", as write_holder() leaves it: who has the lock, in words.
std::string holder(int descriptor) {
  std::array<char, kLongestNote> note{};
  const ssize_t got = ::pread(descriptor, note.data(), note.size() - 1, 0);
  const std::string text(note.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  const std::size_t digits = text.find_first_not_of("0123456789");
  if (digits == std::string::npos || digits == 0 || text[digits] != ' ') return "another process";
  std::string host = text.substr(digits + 1, text.find('\n') - digits - 1);
  std::erase_if(host, [](unsigned char c) { return std::isgraph(c) == 0; });
  return "process " + text.substr(0, digits) + " on " + host;
}

// A note for people; the lock holds without it.
void write_holder(int descriptor) {
  const std::string note = std::to_string(::getpid()) + " " + host_name() + "\n";
  if (::ftruncate(descriptor, 0) == 0) (void)!::pwrite(descriptor, note.data(), note.size(), 0);
}

}  // namespace

FolderLock::FolderLock(const Path& folder) {
  const Path path = folder / ".lock";
  descriptor_ = open_again(path, O_RDWR | O_CREAT, 0644);
  if (descriptor_ < 0) throw_file_error("open", path, errno);
  const int error = again([this] { return ::flock(descriptor_, LOCK_EX | LOCK_NB); }) == 0 ? 0 : errno;
  if (error == 0) {
    write_holder(descriptor_);
    return;
  }
  std::string other;
  if (error == EWOULDBLOCK) other = holder(descriptor_);
  ::close(descriptor_);
  if (error != EWOULDBLOCK) throw_file_error("lock", path, error);
  refuse_value("the run folder " + folder.string() + " is in use by " + other +
               "; wait until it has ended, or work in another folder");
}

FolderLock::~FolderLock() { ::close(descriptor_); }

}  // namespace samba
