// Stop texts: holds back the end of a text while it may still become one of them.
#pragma once

#include <string>
#include <vector>

namespace samba {

class StopFilter {
 public:
  // None of the texts is empty.
  explicit StopFilter(std::vector<std::string> stop) : stop_(std::move(stop)) {}

  // The text that may be given out; sets `stopped` when a stop text is complete: what follows it is gone, and it is.
  std::string push(const std::string& text, bool& stopped);
  // What was held back, when the text ends otherwise.
  std::string finish();

 private:
  std::vector<std::string> stop_;
  std::string held_;
};

}  // namespace samba
