#include "samba/core/names.h"

#include <algorithm>
#include <vector>

namespace samba {

namespace {

constexpr std::size_t kShortestStart = 3;  // of a name, to stand for the rest

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1);
  std::vector<std::size_t> last(b.size() + 1);
  std::vector<std::size_t> current(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({replaced, last[j] + 1, current[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        current[j] = std::min(current[j], before[j - 2] + 1);
      }
    }
    std::swap(before, last);
    std::swap(last, current);
  }
  return last[b.size()];
}

std::string nearest_name(std::string_view given, std::span<const std::string> known) {
  std::string best;
  std::size_t best_distance = 0;
  for (const std::string& name : known) {
    const std::size_t distance = edit_distance(given, name);
    const std::size_t most = std::max<std::size_t>(1, std::max(given.size(), name.size()) / 3);
    const bool begins =
        std::min(given.size(), name.size()) >= kShortestStart && (name.starts_with(given) || given.starts_with(name));
    if (distance > most && !begins) continue;
    if (best.empty() || distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace samba
