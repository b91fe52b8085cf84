"""What a bundle is made of, for reviewers and their tools.

`inventory` reads what the lock does not say (licences, what images hold), `purl` names things as other tools
do, `document` writes the CycloneDX document. `airbundle.review` shows the same inventory as a page.
"""
