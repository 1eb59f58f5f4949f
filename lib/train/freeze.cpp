#include "samba/train/freeze.h"

#include <algorithm>

#include "samba/core/error.h"
#include "samba/core/names.h"

namespace samba {

bool matches_pattern(std::string_view pattern, std::string_view name) {
  std::size_t p = 0, n = 0;
  std::size_t star = std::string_view::npos, tried = 0;  // the last star, and the end of what it stands for
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      tried = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++tried;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

std::vector<bool> frozen_tensors(const Registry& registry, const std::vector<std::string>& patterns) {
  std::vector<bool> frozen(registry.tensors().size(), false);
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    bool found = false;
    std::vector<std::string> names;
    for (std::size_t j = 0; j < frozen.size(); ++j) {
      const std::string& name = registry.tensors()[j].name;
      names.push_back(name);
      if (!matches_pattern(patterns[i], name)) continue;
      found = true;
      frozen[j] = true;
    }
    if (found) continue;
    const std::string nearest = nearest_name(patterns[i], names);
    refuse_value("/train/freeze/" + std::to_string(i) + ": no tensor of the model has a name like \"" + patterns[i] +
                 "\" (* stands for any characters, ? for one); " +
                 (nearest.empty() ? "the names are those of samba inspect, as \"" + names.back() + "\""
                                  : "did you mean \"" + nearest + "\"?"));
  }
  if (std::find(frozen.begin(), frozen.end(), false) == frozen.end()) {
    refuse_value("/train/freeze: every tensor of the model is frozen; at least one must be left to train");
  }
  return frozen;
}

}  // namespace samba
