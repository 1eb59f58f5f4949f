#include "samba/generate/stop_filter.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace samba {

std::string StopFilter::push(const std::string& text, bool& stopped) {
  held_ += text;
  std::size_t cut = std::string::npos;
  for (const std::string& stop : stop_) cut = std::min(cut, held_.find(stop));
  if (cut != std::string::npos) {
    stopped = true;
    held_.resize(cut);
    return std::exchange(held_, "");
  }
  std::size_t keep = 0;
  for (const std::string& stop : stop_) {
    for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
      if (held_.ends_with(std::string_view(stop).substr(0, n))) keep = n;
    }
  }
  const std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return shown;
}

std::string StopFilter::finish() { return std::exchange(held_, ""); }

}  // namespace samba
