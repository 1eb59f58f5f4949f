// Results on stdout.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace samba::apps {

// The reader of stdout went away (`samba decode ... | head -1`): there is nobody left to write for. The command ends
// quietly with exit code 0, unless it has something else to finish.
struct OutputClosed {};

// Writes and flushes. Throws OutputClosed when the pipe was closed, Error(resource) when the device is full.
void print(std::string_view text);

// One line of JSON. Bytes that are no UTF-8 (in a prompt) become U+FFFD.
std::string json_line(const nlohmann::ordered_json& value);

}  // namespace samba::apps
