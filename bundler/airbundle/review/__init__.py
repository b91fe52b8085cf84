"""What somebody who must approve a bundle reads: contents.html, a page that needs nothing but itself, and the SBOM."""
