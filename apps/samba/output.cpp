#include "output.h"

#include <unistd.h>

#include <cerrno>

#include "samba/core/files.h"

namespace samba::apps {

void print(std::string_view text) {
  while (!text.empty()) {
    const ssize_t wrote = ::write(STDOUT_FILENO, text.data(), text.size());
    if (wrote < 0) {
      if (errno == EINTR) continue;
      if (errno == EPIPE) throw OutputClosed{};
      throw_file_error("write", "the standard output", errno);
    }
    text.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

std::string json_line(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace samba::apps
