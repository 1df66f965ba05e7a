"""HTML pages that need nothing but themselves: charts as inline SVG, and what `qpack inspect` shows."""
