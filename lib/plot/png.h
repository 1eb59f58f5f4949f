// Drawings as PNG, by the cairo library of the system, which is loaded when it is asked for: nothing else needs it.
#pragma once

#include <string>

#include "samba/plot/drawing.h"

namespace samba::plot {

// `scale`: picture elements a pixel of the drawing. The bytes follow from the drawing, the installed fonts and cairo;
// they hold no date. Error(unsupported) where cairo is not installed.
std::string png_file(const Drawing& drawing, double scale = 2.0);

}  // namespace samba::plot
