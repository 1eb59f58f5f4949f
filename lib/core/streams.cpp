#include "samba/core/streams.h"

#include "samba/core/system_calls.h"

namespace samba {

ErrorKind kind_of_system_error(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case EACCES:
    case EPERM:
    case ELOOP:
    case ENAMETOOLONG:
    case EROFS:
      return ErrorKind::value;
    default:
      return ErrorKind::resource;
  }
}

std::string read_stream(const Path& path, std::uint64_t most_bytes) {
  // /dev/stdin is not opened anew: of a named pipe whose writer has gone that would wait for another one.
  const bool standard = path == "-" || path == "/dev/stdin";
  std::error_code ignored;
  if (!standard && std::filesystem::is_regular_file(path, ignored)) return read_file(path, most_bytes);
  const Path named = standard ? Path("the standard input") : path;
  const int descriptor = standard ? STDIN_FILENO : open_again(path, O_RDONLY);
  if (descriptor < 0) throw_file_error("open", named, errno);
  std::string content;
  std::vector<char> piece(std::size_t{1} << 16);
  int error = 0;
  while (true) {
    const ssize_t got = ::read(descriptor, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) error = errno;
    if (got <= 0) break;
    content.append(piece.data(), static_cast<std::size_t>(got));
    if (content.size() > most_bytes) break;
  }
  if (!standard) ::close(descriptor);
  if (error != 0) throw_file_error("read", named, error);
  if (content.size() > most_bytes) {
    refuse_value(named.string() + " has more than the " + std::to_string(most_bytes) + " bytes that are accepted");
  }
  return content;
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

void append_to_file(const Path& path, std::string_view text) {
  const int descriptor = open_again(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (descriptor < 0) throw_file_error("open", path, errno);
  int error = write_all(descriptor, text.data(), text.size());
  if (close_once(descriptor) != 0 && error == 0) error = errno;
  if (error != 0) throw_file_error("write", path, error);
}

void sync_file(const Path& path) {
  const int descriptor = open_again(path, O_WRONLY);
  if (descriptor < 0 && errno == ENOENT) return;
  if (descriptor < 0) throw_file_error("open", path, errno);
  int error = again([&] { return ::fsync(descriptor); }) == 0 ? 0 : errno;
  if (close_once(descriptor) != 0 && error == 0) error = errno;
  if (error != 0) throw_file_error("make durable", path, error);
}

}  // namespace samba
