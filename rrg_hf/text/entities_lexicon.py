"""The words of the rule-based entity extractor, and what the words between two phrases mean.

The extractor reads single words, as RadGraph's annotators marked them. Findings and devices also come from the rule
labeller's phrases (`rules_lexicon`): a word inside one of its phrases is an observation even where it is not listed
here, misspellings included.
"""

from __future__ import annotations

import functools
import re
from enum import IntEnum, auto


class Tag(IntEnum):
    """What a word is to the extractor."""

    ANATOMY = auto()
    SIDE = auto()  # anatomy that needs other anatomy: left, upper
    ATTRIBUTE = auto()  # of anatomy: heart size, mediastinal contour
    FINDING = auto()
    QUALITY = auto()  # small, normal, unchanged
    DEVICE = auto()
    MEASURE = auto()  # 2 . 5 cm
    DISTANCE = auto()  # 2 cm above


_ANATOMY = """
lung lungs pulmonary cardiopulmonary pleura pleural pleurae heart cardiac cardiomediastinal cardiomediastinum
cardiopericardial cardiovascular mediastinum mediastinal hilum hila hilar hilus perihilar infrahilar suprahilar
parahilar hemidiaphragm hemidiaphragms diaphragm diaphragms diaphragmatic subdiaphragmatic infradiaphragmatic chest
thorax thoracic hemithorax hemithoraces intrathoracic extrathoracic lobe lobes lobar lingula lingular apex apices
apical biapical base bases basilar bibasilar basal bibasal rib ribs costal clavicle clavicles clavicular scapula
scapulae scapular sternum sternal manubrium xiphoid spine spinal vertebra vertebrae vertebral bone bones bony osseous
skeletal musculoskeletal skeleton trachea tracheal carina carinal subcarinal bronchus bronchi bronchial peribronchial
endobronchial mainstem airway airways bronchovascular tracheobronchial aorta aortic aortopulmonary arch knob artery
arteries arterial vein veins venous vascular vasculature vascularity vessel vessels perivascular svc ivc cava caval
cavoatrial junction atrium atria atrial ventricle ventricles ventricular biventricular pericardium pericardial
epicardial mitral tricuspid annulus annular coronary esophagus esophageal gastroesophageal ge stomach gastric bowel
colon colonic abdomen abdominal duodenum duodenal jejunum pylorus pyloric antrum neck shoulder shoulders humerus
humeri humeral glenohumeral acromioclavicular ac glenoid axilla axillae axillary tissue tissues skin subcutaneous
muscle muscles breast breasts fissure fissures fissural interlobar costophrenic cardiophrenic angle angles sulcus
sulci recess space spaces parenchyma parenchymal interstitium retrocardiac retrosternal paratracheal paraspinal
paravertebral paramediastinal supraclavicular subclavian jugular brachiocephalic innominate femoral carotid azygos
azygous lymph node nodes liver hepatic spleen splenic kidney renal gallbladder biliary pancreas peritoneum peritoneal
intraperitoneal zone zones region regions field fields wall walls side compartment body bodies disc discs disk disks
endplate endplates joint joints thyroid larynx nipple nipples hemidiaphragmatic hiatal hiatus paraesophageal
extrapleural subpleural cervicothoracic thoracolumbar lumbar cervical thoracoabdominal retroperitoneal subphrenic
juxtahilar bronchopulmonary cortex cortical marrow pedicle pedicles facet cage window ventriculus valvular knee hip
hips elbow wrist femur pelvis pelvic foramen cisterna sternoclavicular tracheostoma spines midlung midlungs
hemiabdomen midthoracic midthorax hemidiaphram ij quadrant quadrants
"""
_SIDE = """
left right bilateral bilaterally unilateral upper lower mid middle superior inferior anterior posterior lateral
medial central centrally peripheral peripherally proximal distal ascending descending transverse main minor major
horizontal oblique left-sided right-sided right-side left-side internal external leftward rightward anterolateral
posterolateral posteromedial outer inner soft costo vena first second third fourth fifth sixth seventh eighth ninth
tenth eleventh twelfth
"""
_ATTRIBUTE = """
size silhouette silhouettes contour contours border borders margin margins outline outlines volume volumes marking
markings structure structures caliber calibre configuration width diameter shadow shadows
"""
_FINDING = """
process processes abnormality abnormalities finding findings change changes disease diseases lesion lesions air fluid
gas thickening blunting elevation enlargement widening prominence fullness congestion engorgement redistribution
deformity deformities curvature spurring obscuration crowding collapse hyperinflation hypoinflation hypoaeration
retraction surgery injury trauma dislocation shift deviation bronchogram bronchograms sequela sequelae loss
underlying angulation density densities pathology pathologies infiltrate infiltrates opacity opacities effusion
effusions consolidation consolidations pneumothorax pneumothoraces pneumonia edema atelectasis cardiomegaly nodule
nodules mass masses fracture fractures hernia calcification calcifications scar scars scarring granuloma granulomas
granulomata emphysema copd fibrosis infection aspiration hemorrhage adenopathy lymphadenopathy cyst cysts metastasis
metastases malignancy tumor tumors tumour carcinoma cancer neoplasm aneurysm ectasia scoliosis kyphosis
dextroscoliosis levoscoliosis osteopenia osteoporosis arthritis osteophyte osteophytes spondylosis tortuosity failure
chf overload bronchiectasis bronchitis bulla bullae bleb blebs pneumomediastinum pneumoperitoneum pneumopericardium
embolism embolus plaque plaques haziness haze lucency lucencies hyperlucency erosion erosions swelling narrowing
stenosis obstruction impaction plugging secretions subluxation hemothorax hydropneumothorax hematoma contusion
contusions inflammation infarct infarction hypertension sarcoidosis tuberculosis tb pneumonitis bronchiolitis
pleurisy empyema abscess cavitation cavity cavities mets silhouetting inflation aeration expansion distention
distension tenting effacement eventration lordosis cuffing septal kerley reticulation honeycombing mottling
attenuation
"""
# Progress words that qualify what follows "in" or "of": "improvement in the edema".
_PROGRESS = """
increase decrease improvement progression worsening change changes reduction regression
"""
_QUALITY = """
normal clear unremarkable intact enlarged prominent widened dilated tortuous midline stable unchanged similar small
large moderate mild minimal tiny trace severe marked extensive subtle slight significant gross frank massive acute
chronic subacute old remote healed healing new increased increasing decreased decreasing improved improving worsening
worsened worse persistent persisting residual resolving resolved recurrent focal multifocal diffuse patchy hazy
linear streaky nodular reticular reticulonodular confluent dense calcified noncalcified non-calcified partially
loculated layering free mildly moderately severely slightly minimally markedly scattered multiple several solitary
bandlike band-like platelike plate-like discoid subsegmental segmental compressive round rounded spiculated cavitary
displaced nondisplaced comminuted compression degenerative hypertrophic postsurgical postoperative surgical low high
elevated flattened flattening blunted ectatic thickened atherosclerotic arteriosclerotic interstitial alveolar
airspace air-space space-occupying consolidative infectious inflammatory malignant metastatic neoplastic benign
granulomatous fibrotic emphysematous atelectatic bullous cystic lytic sclerotic blastic hyperinflated hyperexpanded
hyperaerated hyperlucent asymmetric asymmetrical symmetric symmetrical suspicious coarse coarsened congestive
congested engorged indistinct obscured ill-defined well-defined well-circumscribed circumscribed vague faint
vascularized borderline top-normal upper-normal mass-like masslike ground-glass groundglass ground glass confluence
increase decrease improvement progression reduction regression deviated rotated unfolded uncoiled demineralized
osteopenic osteoporotic arthritic kyphotic scoliotic exaggerated accentuated rib-like nonspecific non-specific
obstructive reactive restrictive hydrostatic cardiogenic noncardiogenic non-cardiogenic pneumonic tuberculous
lobulated pleural-based overt discrete isolated considerable substantial tense basilar-predominant predominant
predominantly mixed well-expanded well-inflated well-aerated expanded inflated aerated underinflated hypoinflated
hypoventilatory normally symmetrically enlarging enlarge shallow crowded abnormal abnormally decompensated sharp
smooth irregular calcific radiopaque ovoid oval tunneled tunnelled dual-lumen double-lumen triple-lumen coalescent
heterogeneous heavy heavily advanced marginal wedge deformed positional degenerated lower-lung
"""
_DEVICE = """
tube tubes line lines catheter catheters picc port portacath port-a-cath mediport pacemaker pacer icd aicd
defibrillator lead leads wire wires sternotomy clip clips suture sutures staple staples stent stents drain drains
pigtail hardware screw screws rod rods plate plates prosthesis prostheses valve valves tracheostomy endotracheal
nasogastric orogastric enteric feeding et ng og ett ngt ogt dobbhoff dobhoff nasoenteric swan-ganz swan ganz cannula
sheath introducer device devices generator electrode electrodes stimulator iabp impella lvad ecmo filter coil coils
marker markers fiducial fiducials tip tips sidehole sideport side-port intubation intubated cabg arthroplasty
annuloplasty replacement cholecystectomy mastectomy lobectomy pneumonectomy
"""
# The labeller's phrases hold these, but they carry no content of their own.
_FUNCTION = """
a an the of in on at to with within along into and or as is are was were appears appear remains remain be by for from
both this that these those its their it there no not any without due secondary related than also again now still
definite definitely clear-cut position sign signs evidence extending tracking more less most sided like approximately
other prior previous one two three some interval under below beneath above behind over across through throughout
around near between onto upon overlying adjacent involving involves has have had since after before but which who
whether
"""

PART_OF_DEVICE = frozenset({"tip", "tips", "lead", "leads", "sidehole", "sideport", "side-port"})
# inside a denial these are its words, not observations
CUE_WORDS = frozenset({"resolved", "resolving", "cleared", "free", "negative"})
_VIEWS = """
view views projection projections film films radiograph radiographs image images decubitus x-ray x-rays xray ct cta
mri ultrasound
"""
VIEWS = frozenset(_VIEWS.split())
# Words that do not part a phrase: "chronic appearing deformity".
FILLERS = frozenset({"appearing", "sized", "approach", ""})
# Phrases that are one entity, as "within normal limits" is in RadGraph: words -> the word that stands for them.
FIXED: dict[str, list[tuple[tuple[str, ...], str]]] = {
    "within": [(("within", "normal", limit), "normal") for limit in ("limits", "limit")],
    "upper": [(("upper", limit, "of", "normal"), "normal") for limit in ("limits", "limit")]
    + [(("upper", "normal"), "normal")],
    "top": [(("top", "normal"), "normal")],
    "high": [(("high", "normal"), "normal")],
}
# A sign that is denied names no observation of its own: "no findings of edema".
SIGNS = frozenset({"findings", "finding", "features", "feature", "appearance", "indication", "concern"})
PROGRESS = frozenset(_PROGRESS.split())
FUNCTION_WORDS = frozenset(_FUNCTION.split())
# A list item that opens like this is stated, not part of an unpunctuated list of denials.
_STATED_OPENERS = """
small tiny trace mild mildly moderate moderately severe minimal slight stable unchanged increased increasing
decreased decreasing persistent improved improving worsening worsened chronic old healed bibasilar low
"""
STATED_OPENERS = frozenset(_STATED_OPENERS.split())
# Denied change ("no significant change") is an observation; a denied sign or study is not.
NEGATIONS = frozenset({"no", "not", "non", "nor", "without"})

# Adjectives of a site. Other adjectives of anatomy belong to their finding: "pleural effusion".
_SITES = """
basilar bibasilar basal bibasal apical biapical perihilar infrahilar suprahilar parahilar retrocardiac lingular lobar
paratracheal paramediastinal jugular subclavian femoral retrosternal subphrenic axillary
"""
SITES = frozenset(_SITES.split())

# RaTEScore's "disease": a diagnosis rather than something seen. Everything else seen is an "abnormality".
_DISEASES = """
pneumonia pneumonias bronchopneumonia pna edema oedema chf failure overload copd emphysema asthma bronchitis
bronchiolitis pneumonitis fibrosis tuberculosis tb sarcoid sarcoidosis cancer carcinoma adenocarcinoma malignancy
malignancies neoplasm neoplasms neoplastic tumor tumors tumour tumours metastasis metastases metastatic mets
infection infections infectious scoliosis kyphosis kyphoscoliosis dextroscoliosis levoscoliosis osteopenia
osteoporosis arthritis osteoarthritis arthropathy spondylosis hernia hernias aneurysm aneurysms atherosclerosis
pneumothorax pneumothoraces hydropneumothorax hemothorax chylothorax cardiomegaly atelectasis empyema embolism
embolus bronchiectasis hypertension histoplasmosis disease diseases aspiration hemorrhage abscess infarct infarction
pneumomediastinum pneumoperitoneum pneumopericardium fracture fractures
"""
DISEASES = frozenset(_DISEASES.split())

_MEDICAL_ENDINGS = re.compile(
    r"[a-z]{3,}(?:itis|osis|omas?|omata|ectasis|ectasia|opathy|megaly|thorax|plasia|sclerosis)"
)
_OPERATION_ENDINGS = re.compile(r"[a-z]{3,}(?:ectomy|plasty|otomy|ostomy|desis)")
_NOT_MEDICAL = frozenset({"diagnosis", "prognosis", "diagnoses", "aroma", "diploma", "hypnosis"})
_VERTEBRA = re.compile(r"[tlc]\d{1,2}(?:[-/][tlc]?\d{1,2})?")
_ORDINAL = re.compile(r"\d{1,2}(?:st|nd|rd|th)")


def _table() -> dict[str, Tag]:
    table: dict[str, Tag] = {}
    for words, tag in (
        (_QUALITY, Tag.QUALITY),
        (_FINDING, Tag.FINDING),
        (_DEVICE, Tag.DEVICE),
        (_ATTRIBUTE, Tag.ATTRIBUTE),
        (_SIDE, Tag.SIDE),
        (_ANATOMY, Tag.ANATOMY),
    ):
        table.update(dict.fromkeys(words.split(), tag))
    table.update(dict.fromkeys(("change", "changes"), Tag.FINDING))
    return table


WORDS: dict[str, Tag] = _table()


@functools.lru_cache(maxsize=1 << 16)
def tag_of(word: str) -> Tag | None:
    """Tag of a lower-case word by the lists above, its shape or its parts; None for every other word."""
    tag = WORDS.get(word)
    if tag is not None or len(word) < 2:
        return tag
    if word[0].isdigit():
        return Tag.SIDE if _ORDINAL.fullmatch(word) else None
    if _VERTEBRA.fullmatch(word):
        return Tag.ANATOMY
    if word in _NOT_MEDICAL or word in FUNCTION_WORDS:
        return None
    if _MEDICAL_ENDINGS.fullmatch(word):
        return Tag.FINDING
    if _OPERATION_ENDINGS.fullmatch(word):
        return Tag.DEVICE
    if "-" in word:
        parts = [part for part in word.split("-") if part]
        for part in reversed(parts):
            tag = WORDS.get(part)
            if tag is not None:
                return tag
        if parts and parts[-1] in ("sided", "side"):
            return Tag.SIDE
    return None


# What stands between two phrases of a sentence.
_LOOSE = (
    r"(?:the|a|an|its|their|this|that|these|those|both|his|her|patient's|either|each|some|any|entire|visualized|visualised"
    r"|adjacent|associated|known|also|again|now|still|possible|probable|at least)"
)
_HEDGE = r"(?:likely|possibly|probably|perhaps)"
_PREPOSITION = (
    r"(?:in|at|of|within|over|along|on|onto|overlying|involving|near|from|into|throughout|through|across|behind|above"
    r"|below|beneath|under|around|about|abutting|obscuring|between|beyond|per|for|projecting|affecting|occupying"
    r"|overlies|overlie|projects|crosses|reaches|enters)"
)
_ADVERB = (
    r"(?:\w+ly|also|again|now|still|otherwise|well|quite|somewhat|not|within|in|at|of|the|a|an|overall|more|less|as"
    r"|being|been|be|to|no longer|longer|essentially|very|fairly|too)"
)
_COPULA = r"(?:is|are|was|were|appears?|remains?|looks?|seems?|has been|have been|has|have|shows?|stays?)"

COORDINATION = re.compile(
    rf"(?:,(?: {_LOOSE})*|(?:, )?(?:and|or|nor|but|with|versus|vs|plus|/|&|to|as well as|along with|in addition to)"
    rf"(?: (?:and|or|nor|/|with|{_LOOSE}|{_HEDGE}))*)"
)
HEDGE = re.compile(rf"(?:, )?{_HEDGE}")
# between two qualities or two sides that share a head
SHARED = re.compile(r"(?:,|and|or|/|to|but|&)(?: (?:and|or|the))*")
LOCATION = re.compile(
    rf"(?:(?!and\b|or\b|but\b|with\b|without\b|no\b)[\w'-]+ ){{0,5}}?{_PREPOSITION}(?: (?:{_LOOSE}|{_PREPOSITION}))*"
)
PREDICATE = re.compile(rf"(?:that |which )?{_COPULA}(?: {_ADVERB}){{0,4}}")
SHOWING = re.compile(
    r"(?:again |now |also )?(?:demonstrates?|shows?|reveals?|contains?|have|has|exhibits?|with)(?: \w+){0,3}"
)
SUGGESTING = re.compile(
    r"\b(?:(?:represent|reflect|indicat|suggest)(?:s|es|e|ing|ive)?\b|(?:consistent|compatible) with|concerning for|"
    r"worrisome for|suspicious for|concern for"
    r"|(?:may|might|could|likely|probably|possibly)(?: \w+)? (?:be|relate|due)\b"
    r"|(?:likely|probably|possibly|presumably)\b|secondary to|due to|related to|in keeping with|typical of"
    r"|indicative of|favou?r)"
)
DENIAL = re.compile(r"\b(?:no|not|without|nor|neither|but|however|although|cannot)\b")
