// Results on stdout.
#pragma once

#include <string_view>

namespace samba::apps {

// The reader of stdout went away (`samba decode ... | head -1`): there is nobody left to write for. The command ends
// quietly with exit code 0, unless it has something else to finish.
struct OutputClosed {};

// Writes and flushes. Throws OutputClosed when the pipe was closed, Error(resource) when the device is full.
void print(std::string_view text);

}  // namespace samba::apps
